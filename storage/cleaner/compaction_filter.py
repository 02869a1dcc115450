"""Which batches and records compaction keeps, and how it rewrites batches.

The rules are Kafka's (`LogCleaner`, `MemoryRecords.filterTo`, KIP-534):

- the newest record of each key is kept, and so are all records above the offsets of the map;
- a record without a value (tombstone) is kept until `delete.retention.ms` after the first
  compaction that read it: this delete horizon replaces the base timestamp of the batch;
- records of aborted transactions are removed; the marker of a transaction is kept as long as one of
  its records, and then as long as a tombstone;
- the last batch of an active producer is kept, even without records: its header contains the last
  sequence number.

Of the messages of magic 0 and 1, with which an old log begins, the newest record of each key is
kept: otherwise a key would come back once the tombstone that deleted it is removed. Their own
tombstones stay, because they have no field for the time until which they are kept (Kafka uses the
modification time of the file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress as compress_by
from typing import NamedTuple

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from ottla.protocol.records.builder import assemble_batch, rebuild_batch
from ottla.protocol.records.compression import compress, decompress
from ottla.protocol.records.control import ABORT, COMMIT, control_type
from ottla.protocol.records.legacy import build_message_set, read_legacy, read_legacy_header
from ottla.protocol.records.reader import read_batch
from ottla.protocol.records.record import Record
from ottla.storage.cleaner.offset_map import OffsetMap, short_keys
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES
from ottla.storage.records.record_outline import Outline, outline

# A batch that is kept or rewritten, and its max timestamp.
Kept = tuple[bytes | memoryview, int]


class LastRecord(NamedTuple):
    """The last offset that an active producer wrote, -1 if it was a marker."""

    data_offset: int
    producer_epoch: int


class TransactionTracker:
    """Finds records of aborted transactions, and markers that are no longer needed.

    Kafka's `CleanedTransactionMetadata`. Must be called for every batch in log order.
    `keep_aborted` is called with each aborted transaction that still has records at its marker, for
    the transaction index of the compacted segment.
    """

    __slots__ = ("_aborted", "_committed", "_ongoing", "_seen", "keep_aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: those that may have records or a marker in the batches."""
        self.keep_aborted: Callable[[AbortedTransaction], None] | None = None
        # Those that begin at a later batch, in descending order of first offset.
        self._aborted = sorted(aborted, key=lambda t: t.first_offset, reverse=True)
        self._ongoing: dict[int, AbortedTransaction] = {}
        # Producers with a record in their ongoing aborted, or committed, transaction.
        self._seen: set[int] = set()
        self._committed: set[int] = set()

    def is_unneeded(self, header: BatchHeader, batch: bytes | memoryview) -> bool:
        """Whether the batch is aborted data, or a marker whose transaction has no records."""
        while self._aborted and self._aborted[-1].first_offset <= header.last_offset:
            begun = self._aborted.pop()
            self._ongoing.setdefault(begun.producer_id, begun)
        if header.is_control:
            return self._is_unneeded_marker(header, batch)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def _is_unneeded_marker(self, header: BatchHeader, batch: bytes | memoryview) -> bool:
        records = read_batch(batch, 0, header)
        if not records:
            return True  # emptied by an earlier compaction
        kind = control_type(records[0].key)
        producer_id = header.producer_id
        if kind == ABORT:
            aborted = self._ongoing.pop(producer_id, None)
            if aborted is None or producer_id not in self._seen:
                return True
            self._seen.discard(producer_id)
            if self.keep_aborted is not None:
                self.keep_aborted(aborted)
            return False
        if kind == COMMIT:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        return False


class Filter:
    """Filters batch by batch. `now_ms` and `delete_retention_ms` determine the delete horizon."""

    __slots__ = (
        "_delete_retention_ms",
        "_first_offset",
        "_flags",
        "_last_records",
        "_map",
        "_now_ms",
        "transactions",
    )

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: TransactionTracker,
        last_records: dict[int, LastRecord],
        now_ms: int,
        delete_retention_ms: int,
        first_dirty_offset: int,
    ) -> None:
        """`offsets` has all keys from `first_dirty_offset` to its latest offset."""
        self._map = offsets
        # So that the keys of these records need not be looked up.
        self._first_offset = first_dirty_offset
        self._flags = offsets.newest_flags(first_dirty_offset)
        self.transactions = transactions
        self._last_records = last_records
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def apply(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        """Return the part of the batch that is kept, None when it is removed.

        Raises RecordsError when the records are invalid.
        """
        unneeded = self.transactions.is_unneeded(header, batch)
        horizon = header.delete_horizon_ms
        discard = unneeded
        if header.is_control:
            discard = unneeded and horizon is not None and horizon <= self._now_ms
        if discard:
            return self._emptied(header) if self._is_last(header) else None
        if header.record_count == 0:
            return (batch, header.max_timestamp) if self._is_last(header) else None
        if header.is_control:
            if unneeded and horizon is None:
                return self._rebuilt(header, batch, None), header.max_timestamp
            return batch, header.max_timestamp
        return self._filter_records(header, batch, horizon)

    def _is_last(self, header: BatchHeader) -> bool:
        last = self._last_records.get(header.producer_id)
        if last is None or not header.has_producer_id:
            return False
        if last.data_offset >= 0:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _filter_records(
        self, header: BatchHeader, batch: memoryview, horizon: int | None
    ) -> Kept | None:
        flags = self._flags_of(header)
        if flags is not None and not any(flags):
            return self._emptied(header) if self._is_last(header) else None
        data = records_of(header, batch)
        lines = outline(data, 0, len(data), header.record_count, with_keys=flags is None)
        if flags is None:
            kept = self._newest_by_key(header, lines)
        else:
            selected = map(flags.__getitem__, lines.offset_deltas)
            kept = list(compress_by(range(header.record_count), selected))
        if horizon is not None and horizon <= self._now_ms:
            known_up_to = self._map.latest_offset - header.base_offset
            kept = [
                index
                for index in kept
                if not lines.tombstones[index] or lines.offset_deltas[index] > known_up_to
            ]
        if not kept:
            return self._emptied(header) if self._is_last(header) else None
        tombstones = True in lines.tombstones and any(lines.tombstones[index] for index in kept)
        if tombstones and horizon is None:
            return self._rebuilt(header, batch, set(kept)), self._newest(header, lines, kept)
        if len(kept) == header.record_count:
            return batch, header.max_timestamp
        newest = self._newest(header, lines, kept)
        starts = lines.starts
        # The records do not change: their deltas are relative to unchanged fields of the header.
        payload = b"".join([data[starts[index] : starts[index + 1]] for index in kept])
        return _batch_like(header, payload, len(kept), newest), newest

    def _flags_of(self, header: BatchHeader) -> bytearray | None:
        """Which offsets of the batch are the newest of a key; None if the keys tell."""
        first = header.base_offset - self._first_offset
        if self._flags is None or first < 0 or header.last_offset > self._map.latest_offset:
            return None
        return self._flags[first : first + header.last_offset_delta + 1]

    def _newest_by_key(self, header: BatchHeader, lines: Outline) -> list[int]:
        base = header.base_offset
        newest_of = self._map.offsets.get
        known_up_to = self._map.latest_offset
        return [
            index
            for index, (delta, key) in enumerate(
                zip(lines.offset_deltas, short_keys(lines.keys), strict=True)
            )
            if base + delta > known_up_to
            or (key is not None and base + delta >= newest_of(key, -1))
        ]

    @staticmethod
    def _newest(header: BatchHeader, lines: Outline, kept: list[int]) -> int:
        if header.timestamp_type == LOG_APPEND_TIME:
            return header.max_timestamp
        return header.base_timestamp + max(map(lines.timestamp_deltas.__getitem__, kept))

    def _rebuilt(self, header: BatchHeader, batch: memoryview, kept: set[int] | None) -> bytes:
        """The batch with a delete horizon, which changes the encoding of every timestamp."""
        records = read_batch(batch, 0, header, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
        chosen = [r for index, r in enumerate(records) if kept is None or index in kept]
        horizon = self._now_ms + self._delete_retention_ms
        return rebuild_batch(header, chosen, delete_horizon_ms=horizon)

    @staticmethod
    def _emptied(header: BatchHeader) -> tuple[bytes, int]:
        attributes = header.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK)
        bare = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP)
        return _batch_like(bare, b"", 0, header.max_timestamp), header.max_timestamp


def records_of(header: BatchHeader, batch: memoryview) -> bytes:
    """The records of the batch, decompressed."""
    codec = header.codec
    content = batch[BATCH_OVERHEAD:]
    return decompress(codec, content, MAX_DECOMPRESSED_BYTES) if codec else bytes(content)


def _batch_like(header: BatchHeader, payload: bytes, count: int, max_timestamp: int) -> bytes:
    codec = header.attributes & CODEC_MASK
    return assemble_batch(
        compress(codec, payload) if codec else payload,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
        attributes=header.attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
    )


class KeptMessages(NamedTuple):
    """A message, or a compressed set of messages, that is kept or rewritten."""

    content: bytes | memoryview
    last_offset: int
    max_timestamp: int


def read_old(message: memoryview) -> list[Record]:
    """The records of a message, or of a compressed set of messages. Raises RecordsError."""
    return read_legacy(message, 0, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)


def filter_old(
    message: memoryview, offsets: OffsetMap, first_offset: int = 0
) -> KeptMessages | None:
    """The newest record of each key of `offsets` and all above its latest offset; None if there
    are none. Offsets, magic and codec do not change. Raises RecordsError.

    None below `first_offset`, where the segment begins: a replica that began within a compressed
    set has the whole of it, and the set would end below its segment if only those were left.
    """
    header = read_legacy_header(message)
    records = read_old(message)
    newest_of, known_up_to = offsets.offsets.get, offsets.latest_offset
    keys = short_keys([record.key for record in records])
    kept = [
        record
        for record, key in zip(records, keys, strict=True)
        if record.offset >= first_offset
        and (
            record.offset > known_up_to or (key is not None and record.offset >= newest_of(key, -1))
        )
    ]
    if len(kept) == len(records):
        return KeptMessages(message, header.last_offset, header.max_timestamp)
    if not kept:
        return None
    content = build_message_set(
        kept,
        magic=header.magic,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=header.max_timestamp,
    )
    rewritten = read_legacy_header(content)
    return KeptMessages(content, rewritten.last_offset, rewritten.max_timestamp)
