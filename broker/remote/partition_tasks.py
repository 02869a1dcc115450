"""The tasks of one tiered partition: copy and expiration on its leader, progress on followers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.remote.lineage import (
    completed,
    first_hole,
    first_missing,
    highest_remote_offset,
    is_complete,
    remote_log_start_offset,
)
from ottla.broker.remote.metadata_manager import RemoteMetadataNotReadyError
from ottla.broker.remote.segment_copier import RemoteSegments, SegmentCopier
from ottla.broker.remote.segment_expiration import SegmentExpiration
from ottla.broker.remote.statistics import PartitionProgress
from ottla.broker.runtime.tasks import WorkerPoolClosed
from ottla.protocol.records.batch import BATCH_OVERHEAD
from ottla.protocol.steps import run_in_turns
from ottla.storage.errors import StorageError
from ottla.storage.log.batch_scan import place_at
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentState

if TYPE_CHECKING:
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
    from ottla.broker.remote.settings import RemoteLogSettings
    from ottla.broker.replication.partition import Partition
    from ottla.storage.log.log import Log
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata, TopicIdPartition


logger = logging.getLogger("ottla.remote")

# While the copy quota is exceeded, or the metadata are being read.
_WAIT_SECONDS = 1.0


class PartitionTasks:
    """From one change of the replica's role, or of the topic's settings, to the next one.

    `copy` and `expire` return after how many seconds they run again.
    """

    def __init__(
        self,
        partition: TopicIdPartition,
        replica: Partition,
        settings: RemoteLogSettings,
        copying: RemoteSegments,
        expiring: RemoteSegments,
        copy_quota: ReplicationQuota,
        problems: RemoteProblems,
        random: Callable[[], float],
    ) -> None:
        """`copying` and `expiring` have worker threads of their own."""
        self.partition = partition
        self.replica = replica
        self._settings = settings
        self._copying = copying
        self._expiring = expiring
        self._copy_quota = copy_quota
        self._problems = problems
        self._random = random
        self.progress = PartitionProgress()
        self._copier = SegmentCopier(
            copying,
            partition,
            copy_quota,
            settings.max_custom_metadata_bytes,
            progress=self.progress,
        )
        self._expiration = SegmentExpiration(expiring, partition, self.progress)
        #: Whether this broker led the partition when these tasks began.
        self.is_led = replica.is_leader
        self._has_caught_up = False
        # `LeaderEpochs.changes` when the remote segments agreed with the epochs. When they did not,
        # and nothing could be restored: with the number of segments.
        self._agreed = -1
        self._unresolved = (-1, -1)
        self._failures = {"copy": 0, "expiration": 0}
        #: Set when the replica changed its role, or left: nothing more begins.
        self.ended = False

    async def copy(self) -> float:
        """Copies what a leader can copy now; notes what is copied on a follower."""
        return await self._run("copy", self._copy)

    async def expire(self) -> float:
        """Applies retention to the remote segments, on the leader."""
        return await self._run("expiration", self._expire)

    def _is_current_leader(self) -> bool:
        return self.is_led and self.replica.is_leader and not self.ended

    async def _copy(self, log: Log) -> float | None:
        self._note_progress(log)
        if not self._is_current_leader():
            return None
        if not self._has_caught_up:
            await self._copying.metadata.catch_up(self.partition)
            self._has_caught_up = True
            if not self._is_current_leader() or log.local.closed or self.replica.log is not log:
                return None  # it took a while
        await self._complete_epochs(log)
        await self._copier.run(log, self._is_current_leader)
        return _WAIT_SECONDS if self._copy_quota.is_exceeded(self._copying.now_ms()) else None

    async def _expire(self, log: Log) -> float | None:
        if self._is_current_leader():
            await self._complete_epochs(log)
            if not self._is_current_leader():
                return None
            self._advance_log_start(log)
            await self._expiration.run(log, self._is_current_leader)
            if self._expiration.failure is not None:
                raise self._expiration.failure
            if self._is_current_leader():
                self._check_holes(log)
        return None

    def _check_holes(self, log: Log) -> None:
        """Raises RemoteStorageError for offsets that are nowhere, as far as this broker knows."""
        segments = _readable(self._expiring.metadata.cache(self.partition))
        hole = first_hole(segments, log.log_start_offset, log.local_log_start_offset)
        if hole is not None:
            raise RemoteStorageError(
                f"{log.name}: offsets {hole[0]} to {hole[1] - 1} are neither on the local disk nor"
                f" in {REMOTE_LOG_METADATA_TOPIC}, whose records were lost if they are in remote"
                " storage. Consumers wait, and the objects stay. Restore that topic, or give these"
                f" offsets up with DeleteRecords before offset {hole[1]}"
            )

    def _note_progress(self, log: Log) -> None:
        """Local retention deletes segments up to this offset."""
        cache = self._copying.metadata.cache(self.partition)
        epochs, end = log.leader_epochs.entries, log.log_end_offset
        log.offsets.highest_remote_offset = highest_remote_offset(cache, epochs, end)

    async def _complete_epochs(self, log: Log) -> None:
        """After its checkpoint was lost, a log knows the leader epochs of local batches only.

        Or the checkpoint is that of another log, and agrees with the local batches. Or the log
        start was lost: a log that had advanced it when it copied a segment knows the epochs from
        there on only, and what is below was deleted.
        """
        epochs, start = log.leader_epochs.entries, log.log_start_offset
        if start == log.log_end_offset:
            return
        is_known = is_complete(epochs, start)
        if is_known:
            if not await self._contradict(log, epochs):
                return
            changes, end = log.leader_epochs.changes, log.log_end_offset
            before = log.local_log_start_offset, log.offsets.truncations
            local = await self._copying.workers.run(_epochs_of_batches, log, before[0], end)
            if (
                (log.leader_epochs.changes, log.log_start_offset) != (changes, start)
                or (log.local_log_start_offset, log.offsets.truncations) != before
                or not self._is_current_leader()
            ):
                return  # the next run compares again
            # An epoch that has no batch yet began at the end of the log, or behind it.
            newest = local[-1] if local else (-1, -1)
            epochs = [*local, *(each for each in epochs if each > newest and each[1] >= end)]
        cache = self._copying.metadata.cache(self.partition)
        found = completed(_readable(cache), epochs, start, log.log_end_offset)
        if found is None:
            self._unresolved = log.leader_epochs.changes, len(cache.snapshot())
            return
        if found != log.leader_epochs.entries:
            logger.info("%s: Leader epochs restored from remote storage: %s", log.name, found)
            log.replace_epochs(found)
        # What is on the local disk can be read without.
        first = min(found[0][1], log.local_log_start_offset, log.high_watermark)
        if start < first and not is_known:
            log.truncator.delete_records_before(first)

    async def _contradict(self, log: Log, epochs: list[tuple[int, int]]) -> bool:
        """Whether remote segments have other epochs at the offsets that are in them only."""
        changes = log.leader_epochs.changes
        if self._agreed == changes:
            return False
        cache = self._copying.metadata.cache(self.partition)
        if self._unresolved == (changes, len(cache.snapshot())):
            return False
        steps = first_missing(cache, epochs, log.log_start_offset, log.local_log_start_offset)
        if await run_in_turns(steps) is None:
            self._agreed = changes
            return False
        return True

    def _advance_log_start(self, log: Log) -> None:
        """To the first record that is left, in remote storage or on the local disk.

        An earlier leader may have deleted remote segments and ended before this log knew it, or a
        power loss took from this broker that the log start had advanced. All segments count as long
        as it is not known which are of this history.

        The log start and the metadata have to agree: if no record says that what is skipped was
        copied and deleted, the records were lost and the segments were not.
        """
        cache = self._expiring.metadata.cache(self.partition)
        first, epochs = log.local_log_start_offset, log.leader_epochs.entries
        remote_start = remote_log_start_offset(cache, epochs)
        if remote_start is not None:
            first = min(first, remote_start)
        if not is_complete(epochs, log.log_start_offset):
            others = [each for each in _readable(cache) if each.end_offset >= log.log_start_offset]
            first = min([first, *(each.start_offset for each in others)])
        if log.log_start_offset >= first:
            return
        highest = highest_remote_offset(cache, epochs, log.log_end_offset)
        lowest = cache.lowest_offset
        was_copied = lowest is not None and lowest <= log.log_start_offset and highest >= first - 1
        if not was_copied:
            if log.config.remote_storage_enable:
                return
            logger.warning(
                "%s: offsets %d to %d are not in remote storage, the log starts at %d",
                log.name,
                log.log_start_offset,
                first - 1,
                first,
            )
        log.truncator.delete_records_before(min(first, log.high_watermark))

    async def _run(self, task: str, run: Callable[[Log], Awaitable[float | None]]) -> float:
        settings, log = self._settings, self.replica.log
        if self.ended or log is None or log.local.closed:
            return settings.task_interval_ms / 1000
        try:
            delay = await run(log)
        except (RemoteMetadataNotReadyError, WorkerPoolClosed):
            return _WAIT_SECONDS  # the broker starts, and the metadata manager logs; or it stops
        except (StorageError, OSError) as error:
            if not log.local.closed and not self.ended:
                self._problems.failed(self.partition, task, error)
            return self._vary(self._back_off_seconds(task))
        except Exception:
            logger.exception("%s: The %s task failed, retrying", log.name, task)
            return self._vary(self._back_off_seconds(task))
        self._failures[task] = 0
        self._problems.worked(self.partition, task)
        return self._vary(settings.task_interval_ms / 1000) if delay is None else delay

    def _back_off_seconds(self, task: str) -> float:
        settings, failures = self._settings, self._failures[task]
        self._failures[task] = min(failures + 1, 32)  # 2 ** 32 is above each maximum
        back_off_ms: int = settings.retry_backoff_ms * 2**failures
        return min(back_off_ms, settings.retry_backoff_max_ms) / 1000

    def _vary(self, seconds: float) -> float:
        """So that the partitions of a broker do not run all at once."""
        return seconds * (1 + self._settings.jitter * (2 * self._random() - 1))


def _epochs_of_batches(log: Log, start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of the batches in [start, end), which are on the local disk. Runs in a worker.

    Raises StorageError, OSError.
    """
    found: list[tuple[int, int]] = []
    for batch in log.batches(start, end):
        place = place_at(log.name, bytes(batch[:BATCH_OVERHEAD]), 0, 0)
        if place.leader_epoch >= 0 and (not found or place.leader_epoch > found[-1][0]):
            found.append((place.leader_epoch, max(place.base_offset, start)))
    return found


def _readable(cache: RemoteLogMetadataCache) -> list[RemoteLogSegmentMetadata]:
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return [each for each in cache.segments() if each.state is finished]


class RemoteProblems:
    """The partitions whose last run failed, by task ("copy", "expiration", "deletion"). Loop only.

    A store that is away fails for all partitions: only the first of them is logged.
    """

    def __init__(self) -> None:
        self._failed: dict[str, dict[TopicIdPartition, str]] = {}

    def failed(self, partition: TopicIdPartition, task: str, error: Exception) -> None:
        """The run failed, and is retried."""
        failed = self._failed.setdefault(task, {})
        text = str(error) or type(error).__name__
        if not failed:
            logger.error(
                "Remote storage: The %s task of %s-%d failed, retrying; failures of other"
                " partitions are not logged until it works again: %s",
                task,
                partition.topic,
                partition.partition,
                text,
            )
        failed[partition] = text

    def worked(self, partition: TopicIdPartition, task: str) -> None:
        """The run ended without an error."""
        failed = self._failed.get(task)
        if failed and failed.pop(partition, None) is not None and not failed:
            logger.info("Remote storage: The %s tasks work again", task)

    def forget(self, partition: TopicIdPartition) -> None:
        """The partition has left this broker."""
        for failed in self._failed.values():
            failed.pop(partition, None)

    def count(self, task: str) -> int:
        """The partitions whose last run of this task failed."""
        return len(self._failed.get(task, ()))

    def first(self) -> tuple[str, str, str] | None:
        """(task, partition, error) of a failure that lasts, or None."""
        for task, failed in self._failed.items():
            for partition, text in failed.items():
                return task, f"{partition.topic}-{partition.partition}", text
        return None
