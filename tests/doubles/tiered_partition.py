"""A partition with tiered storage: a log on a real disk, metadata and remote storage in memory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
from ottla.broker.remote.segment_copier import RemoteSegments, SegmentCopier
from ottla.broker.remote.settings import RemoteLogMetadataSettings
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.steps import run_at_once
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.remote.segments import RemoteLogSegmentState, TopicIdPartition
from tests.doubles.memory_remote_storage import MemoryRemoteStorage
from tests.doubles.remote_metadata_topic import MemoryMetadataTopic
from tests.doubles.storage_logs import NOW_MS, batch_of, marker, plain

PARTITION = TopicIdPartition(UUID(int=7), "t", 0)
HOUR_MS = 3_600_000
CONFIG: dict[str, object] = {
    "segment_ms": 1,
    "remote_storage_enable": True,
    "local_retention_ms": 0,
    "retention_ms": -1,
}


class TieredPartition:
    """A log on a real disk, and everything that its copies need."""

    def __init__(self, path: Path) -> None:
        self.logs = LogManager((str(path),), LogConfig(**CONFIG))
        self.logs.load(NOW_MS)
        self.log = self.logs.get_or_create("t", 0, now_ms=NOW_MS)
        self.storage = MemoryRemoteStorage()
        self.topic = MemoryMetadataTopic(1)
        self.metadata = self._new_metadata()
        self.workers = WorkerPool(threads=1)
        self.quota = ReplicationQuota()
        self.is_leader = True
        self.now_ms = NOW_MS + HOUR_MS
        self.remote = RemoteSegments(
            self.storage, self.metadata, self.workers, 1, lambda: self.now_ms
        )
        self.copier = self.new_copier()

    def _new_metadata(self) -> RemoteLogMetadataManager:
        manager = RemoteLogMetadataManager(
            self.topic, RemoteLogMetadataSettings(topic_num_partitions=1)
        )
        manager.append_retry_seconds = 0
        return manager

    def new_copier(self) -> SegmentCopier:
        return SegmentCopier(self.remote, PARTITION, self.quota, 8)

    async def start(self) -> None:
        self.metadata.assign([PARTITION])
        self.metadata.unavailable = None
        self.metadata.startup()
        await self.metadata.catch_up(PARTITION)

    def append(self, count: int, epoch: int = 0) -> None:
        """Segments of one batch with two records; the last one stays active."""
        for _ in range(count):
            timestamp = NOW_MS + self.log.log_end_offset * HOUR_MS
            self.log.append(batch_of(plain(2, timestamp)), leader_epoch=epoch, now_ms=NOW_MS)
            self.log.update_high_watermark(self.log.log_end_offset)

    async def copy(self) -> int:
        return await self.copier.run(self.log, lambda: self.is_leader)

    def expire_locally(self) -> int:
        return run_at_once(self.log.retention.delete_old_segments(NOW_MS + 10_000 * HOUR_MS))

    def states(self) -> list[RemoteLogSegmentState]:
        return [each.state for each in self.metadata.cache(PARTITION).segments()]

    async def restart(self) -> None:
        """Another start of the broker: what was in memory about remote storage is lost."""
        await self.metadata.shutdown()
        self.metadata = self._new_metadata()
        self.remote = RemoteSegments(
            self.storage, self.metadata, self.workers, 1, lambda: self.now_ms
        )
        self.copier = self.new_copier()
        self.log.offsets.highest_remote_offset = -1
        await self.start()

    async def stop(self) -> None:
        await self.metadata.shutdown()
        await self.workers.close()
        self.log.local.release()


def append_transactions(log: Log, batches: int, *, batches_of_a_transaction: int) -> None:
    """Batches of several sizes of the transactional producers 1 and 2, in segments of 20 batches
    and leader epochs of 25. Some transactions are aborted, and the last of each is."""
    log.update_config(log.config.replace(segment_ms=1 << 40, index_interval_bytes=500))
    sequences = {1: 0, 2: 0}
    last = batches_of_a_transaction - 1
    for number in range(batches):
        records = plain(1 + number % 4, NOW_MS, size=3000 if number % 17 == 0 else 40)
        producer, epoch = 1 + number % 2, number // 25
        batch = batch_of(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += len(records)
        log.append(batch, leader_epoch=epoch, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        if number % batches_of_a_transaction == last:
            _end_transaction(log, producer, committed=number % 2 == 0, leader_epoch=epoch)
        if number % 20 == 19:
            log.roll(NOW_MS)
    for producer in (1, 2):
        _end_transaction(log, producer, committed=False, leader_epoch=(batches - 1) // 25)


def _end_transaction(log: Log, producer_id: int, *, committed: bool, leader_epoch: int) -> None:
    batch = marker(producer_id, committed=committed)
    origin = AppendOrigin.COORDINATOR
    log.append(batch, leader_epoch=leader_epoch, now_ms=NOW_MS, origin=origin)
    log.update_high_watermark(log.log_end_offset)
