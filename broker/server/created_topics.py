"""The topics of `ottla.create.topics`, created after the start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.broker.config.resource_rules import topics_to_create
from ottla.broker.runtime.tasks import spawn, stop
from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.config.resource_rules import TopicToCreate
    from ottla.broker.coordination.auto_topic_creation import CreateTopics

logger = logging.getLogger("ottla.topics")

# The other brokers of a cluster may start later: replicas need them.
_RETRY_SECONDS = 1.0
_GIVE_UP_SECONDS = 600.0

# A later attempt may succeed.
_NOT_YET = frozenset(
    (
        *(ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NOT_CONTROLLER),
        *(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR),
    )
)
_THERE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


class CreatedTopics:
    """Creates the topics that a broker names in its settings. Loop only."""

    def __init__(self, texts: Sequence[str], create_topics: CreateTopics) -> None:
        """`texts` are the entries of `ottla.create.topics`, which were checked."""
        self._missing = {each.name: _new_topic(each) for each in topics_to_create(texts)}
        self._create_topics = create_topics
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to create them, in a task that ends with the last one."""
        if self._missing:
            self._task = spawn(self._create_all(), name="create-topics")

    async def stop(self) -> None:
        """Give up what is not created yet."""
        if self._task is not None:
            await stop(self._task)

    async def _create_all(self) -> None:
        attempts = int(_GIVE_UP_SECONDS / _RETRY_SECONDS)
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(_RETRY_SECONDS)
            problem = await self._create()
            if not self._missing:
                return
            if attempt == 0:
                logger.warning(
                    "Cannot create the topics %s of ottla.create.topics yet, retrying: %s",
                    ", ".join(self._missing),
                    problem,
                )
        logger.error(
            "Failed to create the topics %s of ottla.create.topics: %s",
            ", ".join(self._missing),
            problem,
        )

    async def _create(self) -> str:
        """Create what is missing; return why something still is."""
        topics = list(self._missing.values())
        try:
            codes = await self._create_topics(topics)
        except Exception as error:  # the controller has resigned, or its broker does not respond
            return str(error) or type(error).__name__
        problem = ""
        for name, code in codes.items():
            if code in _NOT_YET:
                problem = error_name(code)
                continue
            del self._missing[name]
            if code == ErrorCode.NONE:
                logger.info("Created the topic %s of ottla.create.topics", name)
            elif code not in _THERE:
                logger.error("Failed to create the topic %s: %s", name, error_name(code))
        return problem


def _new_topic(topic: TopicToCreate) -> NewTopic:
    policy = topic.cleanup_policy
    configs = None if policy is None else {"cleanup.policy": policy}
    return NewTopic(topic.name, topic.partitions, topic.replicas, None, configs)
