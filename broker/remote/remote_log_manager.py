"""Tiered storage of one broker: copies segments, expires them, and finds them for reads.

Mirrors Kafka's RemoteLogManager (KIP-405). For each partition of a topic with
`remote.storage.enable` the leader copies closed segments and applies retention to remote ones; a
follower keeps track of what is copied, so that its local retention can delete segments. Each runs
every `remote.log.manager.task.interval.ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from random import random
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.partition_tasks import PartitionTasks, RemoteProblems
from ottla.broker.remote.segment_copier import RemoteSegments
from ottla.broker.remote.segment_expiration import delete_partition
from ottla.broker.runtime.tasks import WorkerPool, WorkerPoolClosed, spawn, stop
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import StorageError
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from ottla.storage.remote.segments import TopicIdPartition

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
    from ottla.broker.remote.settings import RemoteLogSettings
    from ottla.broker.remote.statistics import PartitionProgress
    from ottla.broker.replication.partition import Partition
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.log.log import Log
    from ottla.storage.remote.remote_storage import RemoteStorage
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata


logger = logging.getLogger("ottla.remote")

#: Kafka's internal topics, whose segments stay on local disks.
NOT_TIERED = INTERNAL_TOPICS | {REMOTE_LOG_METADATA_TOPIC}
# Partitions whose key is kept: 400 bytes each. A fetch needs it, and a UUID takes long to make.
_MAX_KNOWN = 10_000
# How long a stop waits for copies that run. Kafka waits ten seconds, after which Docker kills: then
# the next start recovers all logs. A copy that is cancelled is made again.
_STOP_SECONDS = 4.0
# And then for the threads of those that were cancelled; after a crash, which waits for no copy.
_THREADS_SECONDS, _CRASH_SECONDS = 2.0, 10.0
# A request to the store that takes longer is a fault, although it may still end: the thread that
# waits for it cannot be interrupted. Reads and deletions take milliseconds, copies a gibibyte.
_OVERDUE_SECONDS = 30.0
_COPY_OVERDUE_SECONDS = 300.0


class RemoteLogManager:
    """Loop only. `metadata` and `storage` are for reads, too."""

    def __init__(
        self,
        settings: RemoteLogSettings,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorage,
        broker_id: int,
        now_ms: Callable[[], int],
        readers: WorkerPool,
        random: Callable[[], float] = random,
        write_log_starts: Callable[[], object] = lambda: None,
        names_remote_storage: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """`now_ms` is the wall clock; `random` returns numbers from 0 to 1, for the jitter.

        `write_log_starts` writes the log start offsets to their checkpoint, in a worker thread.
        `names_remote_storage`: whether a topic has the setting `remote.storage.enable`, whichever
        value: it may have remote segments from before.
        """
        self.metadata = metadata
        self.storage = storage
        self.settings = settings
        samples, seconds = settings.copy_quota_window
        self.copy_quota = ReplicationQuota(window_count=samples, window_ms=seconds * 1000)
        samples, seconds = settings.fetch_quota_window
        #: `remote.log.manager.fetch.max.bytes.per.second`, for reads of clients.
        self.fetch_quota = ReplicationQuota(window_count=samples, window_ms=seconds * 1000)
        #: Threads for reads of clients (`remote.log.reader.threads`).
        self.readers = readers
        self._now_ms = now_ms
        self._random = random
        self._copiers = WorkerPool(threads=settings.copier_threads, name="remote-log-copier")
        self._expirers = WorkerPool(
            threads=settings.expiration_threads, name="remote-log-expiration"
        )
        self._copying = RemoteSegments(storage, metadata, self._copiers, broker_id, now_ms)
        self._expiring = RemoteSegments(storage, metadata, self._expirers, broker_id, now_ms)
        self._expiring.being_copied = self._copying.being_copied
        self._expiring.write_log_starts = write_log_starts
        self._names_remote_storage = names_remote_storage
        self.statistics = self._expiring.statistics = self._copying.statistics
        self.problems = RemoteProblems()
        self._known: dict[tuple[bytes, int], TopicIdPartition] = {}
        self._tasks: dict[TopicPartition, PartitionTasks] = {}
        #: The partitions of each topic in `_tasks`.
        self._topics: Counter[str] = Counter()
        self._copy_tasks: TaskSchedule[TopicPartition] = TaskSchedule(
            "remote-log-copy", self._copy, settings.copier_threads
        )
        self._expiration_tasks: TaskSchedule[TopicPartition] = TaskSchedule(
            "remote-log-expiration", self._expire, settings.expiration_threads
        )
        #: What is left of deleted topics, with the key of their last copy.
        self._deleting: dict[TopicIdPartition, TopicPartition] = {}
        self._deletion_tasks: TaskSchedule[TopicIdPartition] = TaskSchedule(
            "remote-log-deletion", self._delete, settings.expiration_threads
        )

    # -- reads ----------------------------------------------------------------------------------

    def partition(self, log: Log) -> TopicIdPartition | None:
        """The partition in remote storage; None if the log has nothing there.

        What was copied stays in use when `remote.storage.enable` becomes false, or the topic
        compacted: it is read, and retention deletes it. Internal topics have nothing there,
        whatever their settings are.
        """
        config = log.config
        is_tiered = (
            (config.remote_storage_enable and not config.compact)
            or log.log_start_offset < log.local_log_start_offset
            or self._names_remote_storage(log.topic)
        )
        return self._partition_of(log) if is_tiered else None

    def _partition_of(self, log: Log) -> TopicIdPartition | None:
        """None without a topic id, and for internal topics."""
        topic_id = log.topic_id
        if log.topic in NOT_TIERED or topic_id is None or topic_id == ZERO_UUID:
            return None
        found = self._known.get((topic_id, log.partition))
        if found is None:
            found = TopicIdPartition(UUID(bytes=topic_id), log.topic, log.partition)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[topic_id, log.partition] = found
        return found

    def segment_at(self, log: Log, offset: int) -> RemoteLogSegmentMetadata | None:
        """The remote segment of this log's history to read `offset` from, or None.

        Raises RemoteMetadataNotReadyError.
        """
        partition = self.partition(log)
        if partition is None:
            return None
        cache = self.metadata.cache(partition)
        return cache.segment_at(log.leader_epochs.epoch_for_offset(offset), offset)

    def problem(self) -> str | None:
        """What fails now, in one sentence, or None."""
        first = self.problems.first()
        if first is not None:
            task, name, error = first
            count = self.problems.count(task)
            return f"the {task} task of {name} failed ({count} partitions in all): {error}"
        for what, pool, limit in (
            ("read", self.readers, _OVERDUE_SECONDS),
            ("deletion", self._expirers, _OVERDUE_SECONDS),
            ("copy", self._copiers, _COPY_OVERDUE_SECONDS),
        ):
            seconds = pool.oldest_seconds()
            if seconds > limit:
                return f"a {what} has had no response of the store for {seconds:.0f} seconds"
        if self._tasks and self.metadata.unavailable is not None:
            return self.metadata.unavailable
        return None

    # -- metrics --------------------------------------------------------------------------------

    def progress(self) -> Iterator[tuple[str, PartitionProgress]]:
        """(topic, progress) of each partition that this broker leads."""
        for key, tasks in self._tasks.items():
            if tasks.is_led and not tasks.ended:
                yield key.topic, tasks.progress

    def idle_ratios(self) -> dict[tuple[str, ...], float]:
        """The part of the runs of each task that could begin now."""
        return {
            ("copy",): self._copy_tasks.idle_ratio,
            ("expiration",): self._expiration_tasks.idle_ratio,
        }

    # -- start and stop -------------------------------------------------------------------------

    def startup(self) -> None:
        """Begins to read the metadata, and the tasks."""
        self.metadata.startup()
        self._copy_tasks.start()
        self._expiration_tasks.start()
        self._deletion_tasks.start()

    async def shutdown(self, *, crash: bool = False) -> None:
        """Ends the tasks: what is being copied may end first, for 4 seconds unless `crash`."""
        for tasks in self._tasks.values():
            tasks.ended = True
        timeout = 0.0 if crash else _STOP_SECONDS
        schedules = (self._copy_tasks, self._expiration_tasks, self._deletion_tasks)
        await asyncio.gather(*(schedule.stop(timeout) for schedule in schedules))
        if self._deleting:
            logger.warning(
                "Remote segments of %d partitions of deleted topics are left in the remote storage",
                len(self._deleting),
            )
        await self.metadata.shutdown()
        pools = (self._copiers, self._expirers, self.readers)
        seconds = _CRASH_SECONDS if crash else _THREADS_SECONDS
        if all(await asyncio.gather(*(pool.close(seconds) for pool in pools))):
            self.storage.close()
        else:
            logger.warning("Requests to the remote storage are still running at the stop")

    def update_quotas(self, config: BrokerConfig) -> None:
        """Takes the rates for copies and reads, which change at run time."""
        self.copy_quota.limit = config.remote_log_manager_copy_max_bytes_per_second
        self.fetch_quota.limit = config.remote_log_manager_fetch_max_bytes_per_second

    # -- replicas -------------------------------------------------------------------------------

    def on_leadership(self, leaders: Iterable[Partition], followers: Iterable[Partition]) -> None:
        """This broker became leader, or follower, of these partitions, or continues to be it in a
        higher leader epoch."""
        self._begin([*leaders, *followers])

    def _begin(self, replicas: Iterable[Partition]) -> None:
        """Starts the tasks of those that are tiered, as of now."""
        begun = []
        for replica in replicas:
            partition = None if replica.log is None else self.partition(replica.log)
            if partition is None:
                self.on_stopped(replica.key, is_deleted=True, with_topic=False)
                continue
            self._begin_tasks(replica, partition)
            begun.append(partition)
        if begun:
            self.metadata.assign(begun)

    def _begin_tasks(self, replica: Partition, partition: TopicIdPartition) -> None:
        before = self._tasks.get(replica.key)
        if before is None:
            self._topics[replica.key.topic] += 1
        else:
            before.ended = True
            if before.partition != partition:  # the topic was created again
                self._forget(before.partition)
        self._tasks[replica.key] = PartitionTasks(
            partition,
            replica,
            self.settings,
            self._copying,
            self._expiring,
            self.copy_quota,
            self.problems,
            self._random,
        )
        self._copy_tasks.add(replica.key)
        self._expiration_tasks.add(replica.key)

    def follow(self, replica: Partition) -> TopicIdPartition | None:
        """The partition of a follower whose leader has records in remote storage only.

        Starts its tasks if the topic does not have `remote.storage.enable=true` any more, and the
        log here has nothing in remote storage yet.
        """
        partition = None if replica.log is None else self._partition_of(replica.log)
        if partition is not None and replica.key not in self._tasks:
            self._begin_tasks(replica, partition)
            self.metadata.assign([partition])
        return partition

    def settings_changed(self, replicas: Iterable[Partition]) -> None:
        """Begins or ends the tasks of those that are tiered now and were not, or the reverse."""
        changed = [
            each
            for each in replicas
            if each.log is not None
            and (self.partition(each.log) is None) == (each.key in self._tasks)
        ]
        if changed:
            self._begin(changed)

    def on_stopped(self, key: TopicPartition, *, is_deleted: bool, with_topic: bool) -> None:
        """The replica stopped, or is deleted (`is_deleted`): no task of it begins any more.

        If it is deleted because its topic is (`with_topic`), the last leader deletes the remote
        segments in the background. Nothing does after a stop of the broker but `ottla tiered gc`.
        """
        tasks = self._tasks.get(key)
        if tasks is None:
            return
        tasks.ended = True
        self._copy_tasks.remove(key)
        self._expiration_tasks.remove(key)
        if not is_deleted:
            return  # its metadata stay: it may start again, or the deletion follows
        del self._tasks[key]
        self._topics[key.topic] -= 1
        if not self._topics[key.topic]:
            del self._topics[key.topic]
            self.statistics.forget(key.topic)
        if with_topic and tasks.is_led:
            self._deleting[tasks.partition] = key
            self._deletion_tasks.add(tasks.partition)
        self._forget(tasks.partition)

    def _forget(self, partition: TopicIdPartition) -> None:
        """Unless its segments are being deleted."""
        self.problems.forget(partition)
        if partition not in self._deleting:
            self.metadata.unassign([partition])

    async def _copy(self, key: TopicPartition) -> float:
        tasks = self._tasks.get(key)
        return 0.0 if tasks is None else await tasks.copy()

    async def _expire(self, key: TopicPartition) -> float:
        tasks = self._tasks.get(key)
        return 0.0 if tasks is None else await tasks.expire()

    async def _delete(self, partition: TopicIdPartition) -> float:
        """Deletes the remote segments of a partition of a deleted topic."""
        # Its copy would be left: it ends by itself, as its tasks have.
        await self._copy_tasks.wait_for(self._deleting[partition])
        try:
            count = await delete_partition(self._expiring, partition)
        except (StorageError, OSError, WorkerPoolClosed) as error:
            self.problems.failed(partition, "deletion", error)
            return self.settings.retry_backoff_max_ms / 1000
        logger.info(
            "%s-%d: Deleted %d remote segments of the deleted topic",
            partition.topic,
            partition.partition,
            count,
        )
        self._deletion_tasks.remove(partition)
        del self._deleting[partition]
        self._forget(partition)
        return 0.0


Key = TypeVar("Key", bound=Hashable)


class TaskSchedule(Generic[Key]):
    """The keys are partitions. Memory: one entry for each, and those that were removed since."""

    def __init__(self, name: str, job: Callable[[Key], Awaitable[float]], concurrency: int) -> None:
        """`job` returns after how many seconds the key runs again. It does not raise."""
        self._name = name
        self._job = job
        self._concurrency = concurrency
        self._due: list[tuple[float, int, Key]] = []
        # The number of the entry of a key that counts; others of it in `_due` are outdated.
        self._entries: dict[Key, int] = {}
        self._numbers = itertools.count()
        self._running: dict[Key, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        self._tasks.append(spawn(self._run(), name=self._name))

    def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Runs the job for `key`, first after `delay_seconds`; instead of the run that was due.

        If it runs now, it runs again after that.
        """
        number = self._entries[key] = next(self._numbers)
        due = asyncio.get_running_loop().time() + delay_seconds
        heapq.heappush(self._due, (due, number, key))
        self._changed.set()

    def remove(self, key: Key) -> None:
        """No more runs for `key`; one that runs now continues."""
        self._entries.pop(key, None)

    @property
    def idle_ratio(self) -> float:
        """The part of the runs that may be in progress at the same time and are not."""
        return 1 - len(self._running) / self._concurrency

    def is_running(self, key: Key) -> bool:
        return key in self._running

    async def wait_for(self, key: Key) -> None:
        """Returns when no run of `key` is in progress."""
        while (running := self._running.get(key)) is not None:
            await running.wait()

    async def stop(self, timeout_seconds: float) -> None:
        """Starts no more runs, waits for those in progress, and cancels them after the timeout."""
        self._stopping = True
        self._changed.set()
        running = [task for task in self._tasks if not task.done()]
        if running and timeout_seconds > 0:
            await asyncio.wait(running, timeout=timeout_seconds)
        await stop(*self._tasks)

    async def _run(self) -> None:
        """Takes what is due; begins at most `concurrency` runs at the same time."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._changed.clear()
            delay: float | None = None
            while self._due and len(self._running) < self._concurrency:
                due, number, key = self._due[0]
                if self._entries.get(key) != number or key in self._running:
                    # Removed, or added again. What runs now is added again at its end.
                    heapq.heappop(self._due)
                    continue
                delay = due - loop.time()
                if delay > 0:
                    break
                heapq.heappop(self._due)
                self._running[key] = asyncio.Event()
                self._tasks = [task for task in self._tasks if not task.done()]
                self._tasks.append(spawn(self._run_one(key, number), name=self._name))
                delay = None
            # Runs that end set the event, too.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def _run_one(self, key: Key, number: int) -> None:
        delay = 0.0
        try:
            delay = await self._job(key)
        finally:
            self._running.pop(key).set()
            self._changed.set()
        if self._stopping or key not in self._entries:
            return
        # Added again meanwhile: at once, as what was due then was left out.
        self.add(key, delay if self._entries[key] == number else 0.0)
