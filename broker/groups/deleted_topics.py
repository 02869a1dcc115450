"""Removes the offsets of deleted topics: a new topic of the same name must not inherit them.

The end of the log at the time of the deletion separates earlier commits from later ones, which may
be for a new topic of the name. So checking the groups may pause, and may be repeated after a
failure.

The coordinator at the time of a deletion removes the offsets. If it dies or resigns before its
tombstones are committed, the next coordinator loads them. (Kafka keeps them until they expire.) So
`MissedDeletions` compares what was loaded with the topics that exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
from ottla.controller.tree.store import StoreError
from ottla.protocol.listed import listed
from ottla.protocol.steps import Steps, TurnQueue, run_in_turns
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import AnyGroup
    from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.groups")

# Tombstones of one batch, where a group has many offsets. A batch takes 0.2 ms, and 13 us for each.
OFFSETS_PER_BATCH = 32
RETRY_MS = 5_000

RemoveOffsets = Callable[["AnyGroup", list[TopicPartition], str, Callable[[int], None]], None]


class _Deletion(NamedTuple):
    """Topics that were deleted, for the groups of one partition of `__consumer_offsets`."""

    group_partition: GroupPartition
    topic_partitions: frozenset[TopicPartition]
    end_offset: int


class DeletedTopics:
    """The topics that were deleted, until no group has offsets in them. Loop only."""

    def __init__(
        self,
        partitions: GroupPartitions,
        appender: GroupAppender,
        timer: DelayQueue,
        jobs: TurnQueue,
        remove_offsets: RemoveOffsets,
    ) -> None:
        """`remove_offsets` appends the tombstones of offsets of a group."""
        self._partitions = partitions
        self._appender = appender
        self._timer = timer
        self._jobs = jobs
        self._remove_offsets = remove_offsets
        # Groups to check again: at most one for each group and deletion.
        self._undone: dict[tuple[_Deletion, str], None] = {}

    def on_deleted(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These were deleted now."""
        deleted = frozenset(topic_partitions)
        self._jobs.start(
            self._remove_all(
                [
                    _Deletion(partition, deleted, self._appender.end_offset(partition))
                    for partition in self._partitions.active
                    if partition.groups
                ]
            )
        )

    def on_deleted_before(
        self,
        group_partition: GroupPartition,
        end_offset: int,
        topic_partitions: frozenset[TopicPartition],
    ) -> None:
        """These were deleted before the log of the group partition had this end."""
        self._jobs.start(
            self._remove_all([_Deletion(group_partition, topic_partitions, end_offset)])
        )

    def _remove_all(self, deletions: list[_Deletion]) -> Steps[None]:
        for deletion in deletions:
            for group_id in list(deletion.group_partition.groups):
                yield from self._remove(deletion, group_id)
                yield

    def _remove(self, deletion: _Deletion, group_id: str) -> Steps[None]:
        """Remove the offsets of a group in these topics; retry later those that cannot be now."""
        group = self._group(deletion, group_id)
        if group is None:
            return
        found = sorted(group.offsets.among(deletion.topic_partitions))
        done = partial(self._removed, deletion, group_id)
        some_pending = False
        for start in range(0, len(found), OFFSETS_PER_BATCH):
            group = self._group(deletion, group_id)  # a conversion replaces it
            if group is None:
                break
            part = frozenset(found[start : start + OFFSETS_PER_BATCH])
            old, is_pending = group.offsets.before(part, deletion.end_offset)
            some_pending |= is_pending
            if old:
                self._remove_offsets(group, sorted(old), "the topic was deleted", done)
            yield
        if some_pending:
            self._retry(deletion, group_id)

    def _group(self, deletion: _Deletion, group_id: str) -> AnyGroup | None:
        """Return the group, as long as this broker has it."""
        if not self._partitions.is_active(deletion.group_partition):
            return None
        return deletion.group_partition.groups.get(group_id)

    def _removed(self, deletion: _Deletion, group_id: str, error_code: int) -> None:
        """Not enough replicas, or disk space: nothing else would remove them before they expire,
        and the groups would continue there when the topic is created again."""
        if error_code and self._partitions.is_active(deletion.group_partition):
            self._retry(deletion, group_id)

    def _retry(self, deletion: _Deletion, group_id: str) -> None:
        if not self._undone:
            self._timer.schedule(RETRY_MS, self._retry_all)
        self._undone[deletion, group_id] = None

    def _retry_all(self) -> None:
        undone, self._undone = self._undone, {}
        self._jobs.start(self._remove_undone(undone))

    def _remove_undone(self, undone: Iterable[tuple[_Deletion, str]]) -> Steps[None]:
        for deletion, group_id in undone:
            yield from self._remove(deletion, group_id)
            yield


class _Loaded(NamedTuple):
    group_partition: GroupPartition
    end_offset: int


class MissedDeletions:
    """Finds offsets of topics that were deleted before this broker loaded them. Loop only."""

    def __init__(
        self, partitions: GroupPartitions, appender: GroupAppender, deleted_topics: DeletedTopics
    ) -> None:
        self._partitions = partitions
        self._appender = appender
        self._deleted_topics = deleted_topics
        # By index: since the last `look`, and since the one before it.
        self._loaded: dict[int, _Loaded] = {}
        self._due: dict[int, _Loaded] = {}

    def on_loaded(self, group_partition: GroupPartition) -> None:
        """Its groups are coordinated here now."""
        end_offset = self._appender.end_offset(group_partition)
        self._loaded[group_partition.index] = _Loaded(group_partition, end_offset)

    async def look(
        self,
        is_known: Callable[[str], bool],
        existing_topics: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        """Remove the offsets of topics that neither the metadata have (`is_known`) nor ZooKeeper.

        To be called every 15 seconds or so. A partition is compared at the second call after it
        was loaded: the server of ZooKeeper that responds may be behind by some seconds, and the
        newest offsets that were loaded may be those of a topic that it does not have yet. Usually
        nothing is read from ZooKeeper: the metadata have all topics. What is committed after the
        load stays.
        """
        due, self._due, self._loaded = self._due, self._loaded, {}
        doubtful = await run_in_turns(self._doubtful(due, is_known))
        if not doubtful:
            return
        try:
            existing = set(await existing_topics())
        except StoreError as error:
            logger.info("Failed to look for topics that groups have offsets of: %s", error)
            self._due = {**due, **self._due}  # at the next call
            return
        for loaded, topic_partitions in doubtful:
            gone = frozenset(each for each in topic_partitions if each.topic not in existing)
            if gone:
                names = listed(sorted({each.topic for each in gone}))
                logger.info("Removing the offsets of deleted topics that were loaded: %s", names)
                self._deleted_topics.on_deleted_before(*loaded, gone)

    def _doubtful(
        self, due: dict[int, _Loaded], is_known: Callable[[str], bool]
    ) -> Steps[list[tuple[_Loaded, set[TopicPartition]]]]:
        """Return the partitions with offsets of topics that the metadata do not have."""
        doubtful = []
        for loaded in due.values():
            if not self._partitions.is_active(loaded.group_partition):
                continue
            unknown: set[TopicPartition] = set()
            for group in list(loaded.group_partition.groups.values()):
                for each in group.offsets.partitions():
                    if not is_known(each.topic):
                        unknown.add(each)
                    yield
                yield
            if unknown:
                doubtful.append((loaded, unknown))
        return doubtful
