"""Creates topics on first use (`auto.create.topics.enable`), and the internal topics.

Mirrors Kafka's `AutoTopicCreationManager`. Topics are created by the controller in this process, or
by a CreateTopics request to the controller on another broker. A request for a topic whose creation
is in progress does not create it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.requests.error_responses import error_code
from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.topic_admin import DEFAULT, NewTopic
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, MetadataSnapshot
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.topics")

# How long the creation of an internal topic may take before its user gets a retriable error.
_WAIT_MS = 10_000

# How long after the begin of a creation responses wait for its outcome, to name its error. The
# clients of a topic whose creation takes longer retry, and none of them waits then.
_OUTCOME_SECONDS = 1.0

# What the client of a topic waits for: the topic is there, or a retry may create it.
_NOT_YET = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    )
)

# Creates topics on the active controller; the result is an error code by name.
CreateTopics = Callable[[list[NewTopic]], Coroutine[Any, Any, dict[str, int]]]


class _Creation(NamedTuple):
    task: asyncio.Task[dict[str, int]]
    began: float
    """On the clock of the loop."""


class AutoTopicCreation:
    """Creates missing topics in the background. Loop only."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataCache, create_topics: CreateTopics
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._create_topics = create_topics
        self._in_progress: dict[str, _Creation] = {}
        self._reduced_factor_logged: set[str] = set()

    async def create(self, names: list[str]) -> dict[str, int]:
        """Create topics; return the error code for the response, by name.

        LEADER_NOT_AVAILABLE is that of a topic that was created or that still may be; another code
        says why a topic cannot be created: INVALID_TOPIC_EXCEPTION if its name collides with that
        of another topic.
        """
        codes = self.create_in_background(names)
        creations = {name: self._in_progress[name] for name in names if name in self._in_progress}
        if creations:
            began = max(creation.began for creation in creations.values())
            left = began + _OUTCOME_SECONDS - asyncio.get_running_loop().time()
            tasks = {creation.task for creation in creations.values()}
            await asyncio.wait(tasks, timeout=max(left, 0.0))
        for name, (task, _) in creations.items():
            if task.done() and not task.cancelled():
                code = task.result().get(name, ErrorCode.NONE)
                if code not in _NOT_YET:
                    codes[name] = code
        return codes

    def create_in_background(self, names: list[str]) -> dict[str, int]:
        """Start the creations; return the error code for the response, by name."""
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
            if name not in self._in_progress:
                to_create.append(topic)
        if to_create:
            creation = _Creation(
                spawn(self._create(to_create), name="auto-topic-creation"),
                asyncio.get_running_loop().time(),
            )
            self._in_progress.update((topic.name, creation) for topic in to_create)
        return codes

    async def ensure(self, name: str) -> int:
        """Create a missing topic, and wait until all its partitions have leaders.

        Returns an error code at once if the topic cannot be created: COORDINATOR_NOT_AVAILABLE if a
        retry may create it, and after 10 s without leaders.
        """
        if name not in self._metadata.snapshot.topics:
            code = self.create_in_background([name])[name]
            if code == ErrorCode.INVALID_REPLICATION_FACTOR:
                return code

        def is_led(snapshot: MetadataSnapshot) -> bool:
            topic = snapshot.topics.get(name)
            return topic is not None and all(s.leader >= 0 for s in topic.partitions.values())

        creation = self._in_progress.get(name)
        if creation is None:
            in_time = await self._metadata.wait_until(is_led, _WAIT_MS)
            return ErrorCode.NONE if in_time else ErrorCode.COORDINATOR_NOT_AVAILABLE
        led = spawn(self._metadata.wait_until(is_led, _WAIT_MS), name="internal-topic-leaders")
        try:
            await asyncio.wait({led, creation.task}, return_when=asyncio.FIRST_COMPLETED)
            if not led.done():
                code = creation.task.result().get(name, ErrorCode.NONE)
                if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _NOT_YET else code
            return ErrorCode.NONE if await led else ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            led.cancel()

    async def _create(self, topics: list[NewTopic]) -> dict[str, int]:
        names = [topic.name for topic in topics]
        try:
            codes = await self._create_topics(topics)
        except Exception as error:  # the controller has resigned, or its broker does not respond
            codes = dict.fromkeys(names, error_code(error))
        finally:
            for name in names:
                del self._in_progress[name]
        for name, code in codes.items():
            if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                logger.warning(
                    "Auto topic creation failed for %s with error %s",
                    name,
                    error_name(code),
                    extra={"topic": name},
                )
        return codes

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
        if name == SHARE_STATE_TOPIC:
            # Not compacted: an update is needed until the next snapshot. Batches are compressed as
            # share.coordinator.state.topic.compression.codec says.
            factor = self._factor(
                name, config.share_coordinator_state_topic_replication_factor, live
            )
            min_isr = min(config.share_coordinator_state_topic_min_isr, factor)
            return NewTopic(
                name,
                config.share_coordinator_state_topic_num_partitions,
                factor,
                None,
                {
                    "cleanup.policy": "delete",
                    "retention.ms": "-1",
                    "compression.type": "producer",
                    "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
                    "min.insync.replicas": str(min_isr),
                },
            )
        return NewTopic(name)

    def _factor(self, name: str, wanted: int, live: int) -> int:
        """Return the replication factor; with the embedded store at most the number of brokers.

        Kafka refuses to create the topic, so that groups do not work on a single broker before the
        replication factor of the internal topic is set to 1. The other workers of a machine may
        start later.
        """
        worker = self._config.worker
        brokers = live if worker is None else worker.workers
        if not self._config.embedded or wanted <= brokers or brokers == 0:
            return wanted
        if name not in self._reduced_factor_logged:
            self._reduced_factor_logged.add(name)
            logger.info(
                "Creating topic %s with replication factor %d instead of %d: not enough brokers",
                name,
                brokers,
                wanted,
            )
        return brokers
