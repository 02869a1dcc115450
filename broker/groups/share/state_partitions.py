"""The share partitions of a group, as the group coordinator asks the share coordinator for them.

Mirrors the initialization and the deletion of share group state in Kafka's
`GroupCoordinatorService`. Nothing here changes a group: its caller stores the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.share import records
from ottla.broker.groups.share.records import ShareRecord, Topics
from ottla.broker.groups.share.share_group import ShareGroup
from ottla.broker.runtime.tasks import gather_limited
from ottla.broker.share.persister import (
    UNINITIALIZED_START_OFFSET,
    SharePartitionKey,
    ShareStatePersister,
    StateSummary,
)
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.cluster_topics import ClusterTopics

logger = logging.getLogger("ottla.groups")

INITIALIZE_TIMEOUT_S = 10.0

# Share partitions whose records are appended at the same time: they wait for the same replicas.
_AT_ONCE = 64


class StatePartitions:
    """Initializes, resets and deletes the state of share partitions."""

    def __init__(self, persister: ShareStatePersister, catalog: ClusterTopics) -> None:
        self._persister = persister
        self._catalog = catalog

    def record(self, group_id: str, initialized: Topics) -> ShareRecord:
        names = {topic_id: self._catalog.name_of(topic_id) or "" for topic_id in initialized}
        return records.state_partitions_record(group_id, initialized, names)

    def are_initialized(self, group: ShareGroup, names: Iterable[str]) -> bool:
        """Return whether all partitions of these topics have a state."""
        topics = [topic for name in names if (topic := self._catalog.describe(name)) is not None]
        return all(
            len(group.initialized.get(topic.topic_id, ())) >= topic.partition_count
            and not group.unconfirmed.get(topic.topic_id)
            for topic in topics
        )

    async def initialize(self, group: ShareGroup, names: Iterable[str]) -> Topics:
        """Let the share coordinator create the state of partitions that have none.

        Returns the partitions that have a state now. What fails is logged, a later heartbeat
        retries it: not before as much time has passed again as this took, because the heartbeats of
        a group wait for each other and have to come within the sessions. The first member of a
        group requests all partitions: a deletion that was interrupted leaves some without state.
        """
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        if group.members and begin_s < group.initialize_at_s:
            return group.initialized
        group.initialize_at_s = 0.0
        if not group.members:
            group.unconfirmed = {each: set(rows) for each, rows in group.initialized.items()}
        initialized = {topic_id: list(rows) for topic_id, rows in group.initialized.items()}
        missing: list[SharePartitionKey] = []
        for name in sorted(names):
            topic = self._catalog.describe(name)
            if topic is not None:
                known = set(initialized.setdefault(topic.topic_id, []))
                known -= group.unconfirmed.get(topic.topic_id, set())
                missing += (
                    SharePartitionKey(group.group_id, topic.topic_id, index)
                    for index in range(topic.partition_count)
                    if index not in known
                )
        problems: list[str] = []

        async def initialize(key: SharePartitionKey) -> None:
            try:
                await self._persister.initialize(key, 0, UNINITIALIZED_START_OFFSET)
            except KafkaError as error:
                # A state with a higher epoch, as its offsets were reset, is one.
                if error.code != ErrorCode.FENCED_STATE_EPOCH:
                    problems.append(str(error))
                    return
            group.unconfirmed.get(key.topic_id, set()).discard(key.partition)
            rows = initialized.setdefault(key.topic_id, [])
            if key.partition not in rows:
                rows.append(key.partition)
                rows.sort()

        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT_S):
                await gather_limited([initialize(key) for key in missing], _AT_ONCE)
        except TimeoutError:
            problems.append("timeout")
        if problems:
            end_s = loop.time()
            group.initialize_at_s = end_s + (end_s - begin_s)
            logger.info(
                "Share group %s: %d partitions wait for the share coordinator: %s",
                group.group_id,
                len(missing),
                problems[0],
                extra={"group": group.group_id},
            )
        return {topic_id: rows for topic_id, rows in initialized.items() if rows}

    async def reset(self, group: ShareGroup, offsets: dict[bytes, dict[int, int]]) -> Topics:
        """Set start offsets; return the partitions that have a state now. Raises KafkaError."""
        initialized = {topic_id: list(rows) for topic_id, rows in group.initialized.items()}

        async def reset(key: SharePartitionKey, offset: int) -> None:
            epoch = (await self.summary(key)).state_epoch + 1
            await self._persister.initialize(key, epoch, offset)

        await self._all(
            reset(SharePartitionKey(group.group_id, topic_id, index), offset)
            for topic_id, rows in offsets.items()
            for index, offset in rows.items()
        )
        for topic_id, rows in offsets.items():
            initialized[topic_id] = sorted({*initialized.get(topic_id, ()), *rows})
        return initialized

    async def delete(self, group_id: str, topics: Topics) -> None:
        """Delete the state of these partitions. Raises KafkaError, and can be repeated then."""
        await self._all(
            self._persister.delete(SharePartitionKey(group_id, topic_id, index))
            for topic_id, indexes in topics.items()
            for index in indexes
        )

    async def summary(self, key: SharePartitionKey) -> StateSummary:
        """Return the stored start offset of a share partition and its epochs. Raises KafkaError."""
        return await self._persister.summary(key, -1)

    @staticmethod
    async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Make all calls, then raise the first error."""
        errors: list[KafkaError] = []

        async def run(call: Coroutine[Any, Any, None]) -> None:
            try:
                await call
            except KafkaError as error:
                errors.append(error)

        await gather_limited([run(call) for call in calls], _AT_ONCE)
        if errors:
            raise errors[0]
