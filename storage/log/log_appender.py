"""Appending records that need a closer look than `Log.append` takes, and batches from a leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ottla.protocol.records.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_MASK,
    HEADER,
    LOG_OVERHEAD,
    MAX_SEQUENCE,
    TRANSACTIONAL_MASK,
)
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.errors import (
    BatchTooLargeForSegment,
    InvalidTransactionState,
    UnexpectedAppendOffset,
)
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.flush import LogFlusher
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_info import AppendInfo
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.log_writer import LogWriter
from ottla.storage.producer.producer_entry import (
    AppendedBatch,
    AppendOrigin,
    CompletedTransaction,
    ProducerAppend,
    ProducerEntry,
)
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.producer.verification import Verification, Verifications
from ottla.storage.records.validation import (
    Accepted,
    AcceptedBatch,
    ValidatedRecords,
    assign,
    prepare_for_follower,
    validate_records,
)
from ottla.storage.records.validation_budget import ValidationBudget

_OF_TRANSACTIONS = TRANSACTIONAL_MASK | CONTROL_MASK
_unpack = HEADER.unpack_from
# Skips the Python frame of AppendedBatch(...), which is a tenth of the append of a small batch.
_as_appended = tuple.__new__


class LogAppender:
    """Validates batches, checks their producers, writes them, and flushes if it must."""

    __slots__ = ("_flusher", "_local", "_offsets", "_producers", "_verifications", "_writer")

    def __init__(
        self,
        local: LocalLog,
        offsets: LogOffsets,
        writer: LogWriter,
        flusher: LogFlusher,
        producers: ProducerState,
        verifications: Verifications,
    ) -> None:
        self._local = local
        self._offsets = offsets
        self._writer = writer
        self._flusher = flusher
        self._producers = producers
        self._verifications = verifications

    def append(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        verification: Verification | None,
        budget: ValidationBudget | None,
    ) -> AppendInfo:
        """`Log.append` for anything but a single plain batch."""
        self._local.check_writable(even_if_full=origin is AppendOrigin.COORDINATOR)
        validated = validate_records(records, self._local.config, origin, now_ms, budget)
        return self._append(validated, leader_epoch, now_ms, origin, verification)

    def append_validated(
        self,
        validated: ValidatedRecords,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None,
    ) -> AppendInfo:
        """`Log.append_validated`."""
        self._local.check_writable()
        return self._append(validated, leader_epoch, now_ms, AppendOrigin.CLIENT, verification)

    def _append(
        self,
        validated: ValidatedRecords,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> AppendInfo:
        offsets = self._offsets
        accepted = assign(
            validated, leader_epoch=leader_epoch, first_offset=offsets.log_end_offset, now_ms=now_ms
        )
        self._check_fits(accepted)
        changes = self._changes(origin, verification)
        duplicate = changes.check(accepted)
        if duplicate is not None:
            # The flush after the first append may have failed.
            if self._flusher.exceeds_flush_messages:
                self._flusher.require_flush(now_ms)
            stamped = self._local.config.message_timestamp_type != "CreateTime"
            return AppendInfo(
                duplicate.first_offset,
                duplicate.last_offset,
                duplicate.timestamp,
                duplicate.timestamp if stamped else -1,
                offsets.log_start_offset,
                0,
                duplicate=True,
            )
        return self._write(accepted, changes, now_ms)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, now_ms: int
    ) -> AppendInfo:
        """`Log.append_as_follower`."""
        plain = self._append_plain(records, now_ms)
        if plain is not None:
            return plain
        local, offsets = self._local, self._offsets
        local.check_writable()
        accepted = prepare_for_follower(records)
        end = offsets.log_end_offset
        if not accepted.batches:
            return AppendInfo(-1, -1, -1, -1, offsets.log_start_offset, 0)
        first, last = accepted.batches[0].first_offset, accepted.batches[-1].last_offset
        if first < end:
            raise UnexpectedAppendOffset(local.directory.name, first, last, end)
        # A batch that is larger than segment.bytes gets a segment of its own: the leader has it
        # from before a change. Kafka rejects it, and the replica never catches up.
        for run in _runs(accepted, local.config.segment_bytes):
            changes = self._changes(AppendOrigin.REPLICATION, None)
            changes.check(run)
            info = self._write(run, changes, now_ms)
        return AppendInfo(
            first, last, info.max_timestamp, -1, offsets.log_start_offset, len(accepted.buffer)
        )

    def _append_plain(
        self, records: bytearray | memoryview | bytes, now_ms: int
    ) -> AppendInfo | None:
        """Appends a single batch that is in no transaction, from a known producer or from one
        without an id, as most are. None: nothing was done."""
        view = memoryview(records)
        size = len(view)
        local, offsets = self._local, self._offsets
        if not BATCH_OVERHEAD <= size <= local.config.segment_bytes:
            return None
        (first, length, leader_epoch, magic, crc, flags, delta, _, timestamp, producer_id, epoch,
         sequence, _) = _unpack(view)  # fmt: skip
        if (
            length + LOG_OVERHEAD != size
            or magic != 2
            or flags & _OF_TRANSACTIONS
            or first < offsets.log_end_offset
            or delta < 0
            or crc32c(view[ATTRIBUTES_POSITION:]) != crc
            or local.closed
            or local.directory.log_directory.append_error is not None
        ):
            return None
        entry = None
        if producer_id >= 0:
            entry = self._producers.producers.get(producer_id)
            if (
                entry is None
                or entry.epoch != epoch
                or entry.transaction_first_offset >= 0
                or not 0 <= sequence <= MAX_SEQUENCE - delta
            ):
                return None
        return self.write_plain(
            view, first, delta, timestamp, leader_epoch, now_ms, entry, epoch, sequence
        )

    def write_plain(
        self,
        batch: bytearray | memoryview,
        first: int,
        delta: int,
        timestamp: int,
        leader_epoch: int,
        now_ms: int,
        entry: ProducerEntry | None,
        epoch: int,
        sequence: int,
    ) -> AppendInfo:
        """Appends a single batch in no transaction, of which everything was checked, and remembers
        its sequence numbers in the producer's entry."""
        last = first + delta
        must_flush = self._writer.write(batch, first, last, timestamp, leader_epoch, now_ms)
        if entry is not None:
            appended = (sequence, sequence + delta, first, last, timestamp)
            entry.remember(epoch, _as_appended(AppendedBatch, appended))
        self._producers.end_offset = last + 1
        if must_flush:
            self._flusher.require_flush(now_ms)
        start = self._offsets.log_start_offset
        return AppendInfo(first, last, timestamp, -1, start, len(batch))

    def _changes(self, origin: AppendOrigin, verification: Verification | None) -> _ProducerChanges:
        return _ProducerChanges(
            self._local.directory.name, self._producers, self._verifications, origin, verification
        )

    def _check_fits(self, accepted: Accepted) -> None:
        size, limit = len(accepted.buffer), self._local.config.segment_bytes
        if size > limit:
            raise BatchTooLargeForSegment(self._local.directory.name, size, limit)

    def _write(self, accepted: Accepted, changes: _ProducerChanges, now_ms: int) -> AppendInfo:
        batches = accepted.batches
        first, last = batches[0].first_offset, batches[-1].last_offset
        newest = max(batch.max_timestamp for batch in batches)
        aborted = changes.aborted()
        undo = self._index(aborted, accepted, newest, now_ms) if aborted else None
        try:
            if len(batches) == 1:
                if batches[0].header is None:
                    self._writer.forget_epochs(first)
                epoch = batches[0].leader_epoch
                must_flush = self._writer.write(accepted.buffer, first, last, newest, epoch, now_ms)
            else:
                must_flush = self._writer.write_many(accepted.buffer, batches, newest, now_ms)
        except BaseException:  # MemoryError, too: the marker has this offset again
            if undo is not None:
                self._undo(undo)
            raise
        if changes.apply():
            self._offsets.refresh_first_unstable()
        self._producers.end_offset = last + 1
        if must_flush:
            self._flusher.require_flush(now_ms)
        start = self._offsets.log_start_offset
        size = len(accepted.buffer)
        return AppendInfo(first, last, newest, accepted.log_append_time, start, size)

    def _index(
        self, aborted: list[AbortedTransaction], accepted: Accepted, newest: int, now_ms: int
    ) -> Callable[[], None]:
        """Indexes aborted transactions before their markers are written. Returns what undoes it.

        After the write it would be too late: a marker without its entry shows aborted records to
        consumers. An entry without its marker, which a crash may leave, is above the recovery
        point, and recovery removes it.
        """
        local, batches = self._local, accepted.batches
        size, last = len(accepted.buffer), batches[-1].last_offset
        if local.must_roll(size, newest, last, now_ms):
            self._writer.roll(batches[0].first_offset, last, now_ms)
        try:
            return local.active.txn_index.append_all(aborted)
        except OSError as error:
            raise local.write_failed(error) from error

    def _undo(self, undo: Callable[[], None]) -> None:
        try:
            undo()
        except OSError as error:
            self._local.directory.log_directory.fail(error)


def _runs(accepted: Accepted, limit: int) -> Iterator[Accepted]:
    """The batches in runs that each fit into a segment, or are one batch: the leader may have
    larger segments."""
    view = memoryview(accepted.buffer)
    if len(view) <= limit:
        yield accepted
        return
    start = 0
    run: list[AcceptedBatch] = []
    for batch in accepted.batches:
        if run and batch.position + batch.size - start > limit:
            yield Accepted(view[start : batch.position], run, -1)
            run, start = [], batch.position
        run.append(batch._replace(position=batch.position - start))
    yield Accepted(view[start:], run, -1)


class _ProducerChanges:
    """What an append changes in the producer state, checked before the write, applied after it."""

    __slots__ = (
        "_appends",
        "_completed",
        "_name",
        "_origin",
        "_producers",
        "_transactional",
        "_verification",
        "_verifications",
    )

    def __init__(
        self,
        name: str,
        producers: ProducerState,
        verifications: Verifications,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> None:
        self._name = name
        self._producers = producers
        self._verifications = verifications
        self._origin = origin
        self._verification = verification
        self._appends: dict[int, ProducerAppend] = {}
        self._completed: list[CompletedTransaction] = []
        self._transactional: set[int] = set()

    def check(self, accepted: Accepted) -> AppendedBatch | None:
        """Raises ProducerError. Returns the earlier append if this one is a duplicate of it."""
        state = self._producers
        view = memoryview(accepted.buffer)
        for batch in accepted.batches:
            header = batch.header
            if header is None or not header.has_producer_id:
                continue
            producer_id = header.producer_id
            if self._origin is AppendOrigin.CLIENT:
                entry = state.producers.get(producer_id)
                duplicate = entry.find_duplicate(header) if entry is not None else None
                if duplicate is not None:
                    return duplicate
            if header.is_transactional:
                self._transactional.add(producer_id)
                if self._origin is not AppendOrigin.REPLICATION and not header.is_control:
                    self._check_verified(producer_id)
            append = self._appends.get(producer_id)
            if append is None:
                lowest = self._verifications.lowest_sequence(producer_id)
                append = state.begin_append(producer_id, self._origin, lowest)
                self._appends[producer_id] = append
            content = view[batch.position : batch.position + batch.size]
            completed = state.check(append, header, content, batch.first_offset)
            if completed is not None:
                self._completed.append(completed)
        return None

    def _check_verified(self, producer_id: int) -> None:
        if self._producers.has_open_transaction(producer_id):
            return
        if not self._verifications.allows(producer_id, self._verification):
            raise InvalidTransactionState(
                f"{self._name}: producer {producer_id} wrote outside of a verified transaction",
                producer_id,
            )

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions that this append aborts, for the index."""
        if not any(completed.aborted for completed in self._completed):
            return []
        stable = self._producers.last_stable_offsets_after(self._appends.values(), self._completed)
        return [
            AbortedTransaction(each.producer_id, each.first_offset, each.last_offset, offset)
            for each, offset in zip(self._completed, stable, strict=True)
            if each.aborted
        ]

    def apply(self) -> bool:
        """The batches have been written. True when transactions may have changed."""
        if not self._appends:
            return False
        state = self._producers
        state.update(self._appends.values())
        for producer_id in self._transactional:
            self._verifications.end(producer_id)
        for completed in self._completed:
            state.complete(completed)
        return True
