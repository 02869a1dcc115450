"""Finds the committed offsets of topics that were deleted before this broker had the groups.

The coordinator at the time of a deletion removes them. When it dies or resigns before its
tombstones are committed, they are in the log that the next coordinator loads, and a topic that is
created again would be read from there. (In Kafka they stay until they expire.) So what was loaded
is compared with the topics that exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import NamedTuple

from ottla.broker.groups.deleted_topics import DeletedTopics
from ottla.broker.groups.log.appender import GroupAppender
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.runtime.slices import run_in_slices
from ottla.controller.tree.store import StoreError
from ottla.protocol.listed import listed
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.groups")

_GROUPS_PER_STEP = 32  # 3 us for each with a few offsets


class _Loaded(NamedTuple):
    group_partition: GroupPartition
    end_offset: int


class MissedDeletions:
    """Loop only."""

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
        """Removes the offsets of topics that neither the metadata have (`is_known`) nor ZooKeeper.

        To be called every 15 seconds or so. A partition is compared at the second call after it
        was loaded: the server of ZooKeeper that responds may be behind by some seconds, and the
        newest offsets that were loaded may be those of a topic that it does not have yet. Usually
        nothing is read from ZooKeeper: the metadata have all topics. What is committed after the
        load stays.
        """
        due, self._due, self._loaded = self._due, self._loaded, {}
        doubtful = await run_in_slices(self._doubtful(due, is_known))
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
    ) -> Generator[None, None, list[tuple[_Loaded, set[TopicPartition]]]]:
        """Those with offsets of topics that the metadata do not have."""
        doubtful = []
        seen = 0
        for loaded in due.values():
            if not self._partitions.is_active(loaded.group_partition):
                continue
            unknown: set[TopicPartition] = set()
            for group in list(loaded.group_partition.groups.values()):
                seen += 1
                if seen % _GROUPS_PER_STEP == 0:
                    yield
                if group.offsets:
                    unknown |= {
                        each for each in group.offsets.partitions() if not is_known(each.topic)
                    }
            if unknown:
                doubtful.append((loaded, unknown))
        return doubtful
