"""A follower whose next records are in remote storage only; mirrors Kafka's `TierStateMachine`.

The follower does not copy them. It begins at the end of the remote segment before the leader's
local log start offset, with the leader epochs and the producers of that segment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.replication.leader_endpoint import EARLIEST_LOCAL, LeaderUnreachable
from ottla.broker.runtime.tasks import WorkerPoolClosed, spawn
from ottla.protocol.errors import KafkaError
from ottla.storage.files.checkpoints import parse_epoch_checkpoint
from ottla.storage.log.log_info import RemoteLogState
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteStorageError,
)

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.replication.follower_truncation import FollowerTruncation
    from ottla.broker.replication.leader_endpoint import LeaderEndpoint
    from ottla.broker.replication.partition import Partition
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.log.log import Log
    from ottla.storage.remote.remote_storage import RemoteStorage
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

logger = logging.getLogger("ottla.replication")

# As the default of `replica.fetch.backoff.ms`.
_RETRY_SECONDS = 1.0
# Partitions of which the last problem is remembered.
_MAX_PROBLEMS = 10_000


class TierStateMachine:
    """Builds the state of followers of one leader. Loop only."""

    def __init__(
        self,
        remote: RemoteLogManager,
        leader: LeaderEndpoint,
        now_ms: Callable[[], int],
        truncation: FollowerTruncation,
    ) -> None:
        """`now_ms` is the wall clock."""
        self._remote = remote
        self._leader = leader
        self._now_ms = now_ms
        self._truncation = truncation

    async def start(self, partition: Partition, leader_log_start_offset: int) -> None:
        """Truncates the log of `partition` fully. It continues behind the remote segments.

        Does nothing if the leader changes meanwhile. The requests to the leader and to the store
        have deadlines. Raises RemoteStorageError, CorruptFile, KafkaError, LeaderUnreachable and
        the errors of `LogTruncator.truncate_fully_and_start_at`: the log is as it was then, or ends
        earlier.
        """
        statistics = self._remote.statistics.topic(partition.topic)
        statistics.state_builds += 1
        try:
            await self._start(partition, leader_log_start_offset)
        except Exception:
            statistics.state_build_errors += 1
            raise

    async def _start(self, partition: Partition, leader_log_start_offset: int) -> None:
        log, leader_epoch = partition.log, partition.leader_epoch
        assert log is not None, "a follower has a log"
        segment = await self._segment_before_local_log(partition, log, leader_epoch)
        end_offset = segment.end_offset + 1
        state = await self._remote.readers.run(
            _read_state, self._remote.storage, segment, self._now_ms()
        )
        if partition.leader_epoch != leader_epoch or partition.log is not log:
            return
        # What is removed is in remote storage: the leader and the metadata of the segments say so.
        is_prepared = await self._truncation.prepare_full_truncation(
            partition, log, keep_committed=False
        )
        if not is_prepared:
            return
        log_start = min(max(leader_log_start_offset, 0), end_offset)
        logger.info(
            "[Partition %s] Truncate fully and start at offset %d: the leader has offsets from %d"
            " on in remote storage",
            partition.key,
            end_offset,
            log_start,
            extra=partition.key._asdict(),
        )
        self._truncation.truncate_fully_and_start_at(
            log, end_offset, log_start, state, keep_committed=False
        )
        log.offsets.highest_remote_offset = segment.end_offset

    async def _segment_before_local_log(
        self, partition: Partition, log: Log, leader_epoch: int
    ) -> RemoteLogSegmentMetadata:
        remote_partition = self._remote.follow(partition)
        if remote_partition is None:
            raise RemoteStorageError(
                f"the leader of {partition.key} has records in remote storage only, and this broker"
                " has no topic id for it yet"
            )
        key = partition.key
        start, epoch = await self._leader.offset(key, leader_epoch, EARLIEST_LOCAL)
        if epoch > 0:
            # The record before may have an earlier epoch, and epochs may be missing in between.
            earlier, end = await self._leader.end_offset_for_epoch(key, leader_epoch, epoch - 1)
            if end > start - 1:
                epoch = earlier
        segment = self._remote.metadata.cache(remote_partition).segment_at(epoch, start - 1)
        if segment is None:
            raise RemoteStorageError(
                f"the leader of {key} has offset {start - 1} with leader epoch {epoch} in remote"
                " storage only, and the remote log metadata here does not have it yet"
            )
        return segment


def _read_state(
    storage: RemoteStorage, segment: RemoteLogSegmentMetadata, now_ms: int
) -> RemoteLogState:
    name = f"leader epochs of segment {segment.segment_id.id}"
    checkpoint = storage.fetch_index(segment, RemoteIndexType.LEADER_EPOCH)
    end_offset = segment.end_offset + 1
    epochs = [each for each in parse_epoch_checkpoint(name, checkpoint) if each[1] < end_offset]
    snapshot: bytes | None
    try:
        snapshot = storage.fetch_index(segment, RemoteIndexType.PRODUCER_SNAPSHOT)
    except NoRemoteIndexError:
        snapshot = None  # it had no producers
    return RemoteLogState(epochs, snapshot, now_ms)


class TieredFollowers:
    """The followers of one leader whose state is being built, each in a task. Loop only."""

    def __init__(
        self,
        machine: TierStateMachine,
        on_ended: Callable[[Partition, Exception | None], None],
    ) -> None:
        """`on_ended` gets an error that the next attempt does not repair: a disk, or a defect."""
        self.building: dict[TopicPartition, asyncio.Task[None]] = {}
        self._machine = machine
        self._on_ended = on_ended
        self._problems: dict[TopicPartition, str] = {}

    def begin(self, partition: Partition, leader_log_start_offset: int) -> None:
        """Begins to build, unless that has begun. It ends when the key leaves `building`."""
        if partition.key not in self.building:
            self.building[partition.key] = spawn(
                self._build(partition, leader_log_start_offset), name=f"tier-{partition.key}"
            )

    def end(self, key: TopicPartition) -> None:
        """The partition is not followed any more: nothing of it is changed from now on."""
        task = self.building.pop(key, None)
        if task is not None:
            task.cancel()
        self._problems.pop(key, None)

    def stop(self) -> None:
        """Ends all of it."""
        for key in list(self.building):
            self.end(key)

    async def _build(self, partition: Partition, leader_log_start_offset: int) -> None:
        failure: Exception | None = None
        try:
            await self._machine.start(partition, leader_log_start_offset)
            self._problems.pop(partition.key, None)
        except (KafkaError, LeaderUnreachable, WorkerPoolClosed, RemoteStorageError) as error:
            self._report(partition, str(error) or type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
        except Exception as error:
            failure = error
        # Cancelled by `end`, it does not come here: the key may have another task by then.
        self.building.pop(partition.key, None)
        self._on_ended(partition, failure)

    def _report(self, partition: Partition, problem: str) -> None:
        """Logs a problem once, until it changes or ends."""
        if len(self._problems) >= _MAX_PROBLEMS:
            self._problems.clear()
        if self._problems.get(partition.key) == problem:
            return
        self._problems[partition.key] = problem
        logger.warning(
            "[Partition %s] Cannot build the state of the records in remote storage, retrying: %s",
            partition.key,
            problem,
            extra=partition.key._asdict(),
        )
