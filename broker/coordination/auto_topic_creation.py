"""Topics that come into being by being used: on first Metadata, and the coordinators' own.

Through the controller in this process, or by a CreateTopics request to the one elsewhere. A topic
whose creation is under way is not asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.coordination.ports import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.topic_admin import DEFAULT, NewTopic
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, MetadataSnapshot
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.topics")

# How long a coordinator's lookup waits for its topic before the client is told to ask again.
_WAIT_MS = 10_000

# Creates topics wherever the controller is; the result is an error code by name.
CreateTopics = Callable[[list[NewTopic]], Coroutine[Any, Any, dict[str, int]]]


class AutoTopicCreation:
    """Creates missing topics in the background."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataCache, create_topics: CreateTopics
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._create_topics = create_topics
        self._under_way: set[str] = set()
        self._told_factor: set[str] = set()

    def create_in_background(self, names: list[str]) -> dict[str, int]:
        """Starts what is not under way yet; the error code to answer meanwhile, by name."""
        codes: dict[str, int] = {}
        to_create: list[NewTopic] = []
        live = len(self._metadata.snapshot.brokers)
        for name in names:
            topic = self._definition(name, live)
            factor = topic.replication_factor
            if factor == DEFAULT:
                factor = self._config.default_replication_factor
            if factor > live:
                codes[name] = ErrorCode.INVALID_REPLICATION_FACTOR
                continue
            codes[name] = ErrorCode.LEADER_NOT_AVAILABLE
            if name not in self._under_way:
                self._under_way.add(name)
                to_create.append(topic)
        if to_create:
            spawn(self._create(to_create), name="auto-topic-creation")
        return codes

    async def ensure(self, name: str) -> int:
        """Creates a topic if it is missing and waits until it is led; an error code."""
        if name not in self._metadata.snapshot.topics:
            code = self.create_in_background([name])[name]
            if code == ErrorCode.INVALID_REPLICATION_FACTOR:
                return code

        def is_led(snapshot: MetadataSnapshot) -> bool:
            topic = snapshot.topics.get(name)
            return topic is not None and all(s.leader >= 0 for s in topic.partitions.values())

        in_time = await self._metadata.wait_until(is_led, _WAIT_MS)
        return ErrorCode.NONE if in_time else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _create(self, topics: list[NewTopic]) -> None:
        names = [topic.name for topic in topics]
        try:
            codes = await self._create_topics(topics)
            for name, code in codes.items():
                if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    logger.warning(
                        "topic %s was not created: %s",
                        name,
                        error_name(code),
                        extra={"topic": name},
                    )
        finally:
            self._under_way.difference_update(names)

    def _definition(self, name: str, live: int) -> NewTopic:
        config = self._config
        if name == GROUP_METADATA_TOPIC:
            return NewTopic(
                name,
                config.offsets_topic_num_partitions,
                self._factor(name, config.offsets_topic_replication_factor, live),
                None,
                {
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                    "compression.type": "producer",
                },
            )
        if name == TRANSACTION_STATE_TOPIC:
            factor = self._factor(name, config.transaction_state_log_replication_factor, live)
            return NewTopic(
                name,
                config.transaction_state_log_num_partitions,
                factor,
                None,
                {
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.transaction_state_log_segment_bytes),
                    "compression.type": "uncompressed",
                    "unclean.leader.election.enable": "false",
                    "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor)),
                },
            )
        return NewTopic(name)

    def _factor(self, name: str, wanted: int, live: int) -> int:
        """The replication factor; with the embedded store no more than there are brokers.

        Kafka refuses, so a broker that is alone has no groups until somebody sets the factor to 1:
        the one thing that trips everybody who tries one out.
        """
        if not self._config.embedded or wanted <= live or live == 0:
            return wanted
        if name not in self._told_factor:
            self._told_factor.add(name)
            logger.info(
                "%s gets %d replica(s) instead of %d: this broker is alone", name, live, wanted
            )
        return live
