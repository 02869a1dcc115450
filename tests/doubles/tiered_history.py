"""A log with transactions in segments of many batches, copied to remote storage; and its reads."""

from __future__ import annotations

from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
from ottla.broker.remote.remote_log_reader import ReadParams, RemoteLogReader, RemoteLogReadResult
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.remote.remote_storage import RemoteStorage
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, TopicIdPartition
from tests.doubles.eventually import eventually_async
from tests.doubles.storage_logs import NOW_MS, batch_of, marker, plain
from tests.doubles.tiered_partition import PARTITION, TieredPartition


class RemoteLogsOf:
    """The RemoteLogManager of one partition."""

    def __init__(self, scene: TieredPartition) -> None:
        self.scene = scene

    @property
    def storage(self) -> RemoteStorage:
        return self.scene.remote.storage

    @property
    def metadata(self) -> RemoteLogMetadataManager:
        return self.scene.metadata

    def partition(self, log: Log) -> TopicIdPartition | None:
        return PARTITION

    def segment_at(self, log: Log, offset: int) -> RemoteLogSegmentMetadata | None:
        epoch = log.leader_epochs.epoch_for_offset(offset)
        return self.scene.metadata.cache(PARTITION).segment_at(epoch, offset)


def append_history(scene: TieredPartition, batches: int = 60, *, segment_batches: int = 20) -> None:
    """Transactions of three producers, some aborted; one is open over several segments.

    Leader epochs change inside of segments. All transactions end before the active segment.
    """
    log = scene.log
    log.update_config(log.config.replace(segment_ms=1 << 40, index_interval_bytes=500))
    sequences = {1: 0, 2: 0, 3: 0}

    def append(producer: int, count: int, size: int, epoch: int) -> None:
        timestamp = NOW_MS + log.log_end_offset * 10
        batch = batch_of(
            plain(count, timestamp, size=size),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += count
        log.append(batch, leader_epoch=epoch, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)

    def end(producer: int, committed: bool, epoch: int) -> None:
        batch = marker(producer, committed=committed)
        log.append(batch, leader_epoch=epoch, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)

    append(3, 1, 10, 0)
    for number in range(batches):
        producer, epoch = 1 + number % 2, number // 25
        append(producer, 1 + number % 4, 3000 if number % 17 == 0 else 40, epoch)
        if number % 7 == 6:
            end(producer, number % 2 == 0, epoch)
        if number % segment_batches == segment_batches - 1:
            log.roll(NOW_MS)
    epoch = batches // 25
    for producer in (1, 2, 3):
        end(producer, False, epoch)
    log.roll(NOW_MS)


def local_read(log: Log, params: ReadParams) -> tuple[bytes, list[tuple[int, int]] | None]:
    """What the log returns while everything is on the local disk."""
    found = log.read(
        *(params.offset, params.max_bytes),
        up_to=params.up_to,
        min_one_batch=params.min_one_batch,
        read_committed=params.read_committed,
    )
    records = b"" if found.slice is None else found.slice.read()
    return records, found.aborted_transactions if params.read_committed else None


async def remote_read(reader: RemoteLogReader, log: Log, params: ReadParams) -> RemoteLogReadResult:
    """A read that is waited for."""
    read = reader.read(log, params)
    await eventually_async(lambda: read.is_done)
    read.release()
    return read.result()


def content(result: RemoteLogReadResult) -> bytes:
    """The records of a result, in memory or in a local file."""
    records = result.records
    return bytes(records) if isinstance(records, bytes | memoryview) else records.read()
