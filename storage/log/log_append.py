"""Appending batches that need a closer look, and batches from a leader: the long way of `Log`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.storage.errors import (
    BatchTooLargeForSegment,
    InvalidTransactionState,
    UnexpectedAppendOffset,
)
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.log_info import AppendInfo
from ottla.storage.producer.producer_entry import (
    AppendedBatch,
    AppendOrigin,
    CompletedTransaction,
    ProducerAppend,
)
from ottla.storage.producer.verification import Verification
from ottla.storage.records.validation import (
    Accepted,
    AcceptedBatch,
    Examined,
    assign,
    examine,
    prepare_for_follower,
)
from ottla.storage.records.validation_budget import ValidationBudget

if TYPE_CHECKING:
    from ottla.storage.log.log_state import LogState


def append_checked(
    log: LogState,
    records: bytearray | memoryview,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin,
    verification: Verification | None,
    budget: ValidationBudget | None = None,
) -> AppendInfo:
    """`Log.append` for anything but a single plain batch. See there."""
    log.check_writable(even_if_full=origin is AppendOrigin.COORDINATOR)
    examined = examine(records, log.config, origin, now_ms, budget)
    return _append_sound(log, examined, leader_epoch, now_ms, origin, verification)


def append_examined(
    log: LogState,
    examined: Examined,
    leader_epoch: int,
    now_ms: int,
    verification: Verification | None,
) -> AppendInfo:
    """`Log.append_examined`. See there."""
    log.check_writable()
    return _append_sound(log, examined, leader_epoch, now_ms, AppendOrigin.CLIENT, verification)


def _append_sound(
    log: LogState,
    examined: Examined,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin,
    verification: Verification | None,
) -> AppendInfo:
    accepted = assign(
        examined, leader_epoch=leader_epoch, first_offset=log.log_end_offset, now_ms=now_ms
    )
    _check_fits(log, accepted)
    producers = _ProducerChanges(log, origin, verification)
    duplicate = producers.check(accepted)
    if duplicate is not None:
        stamped = log.config.message_timestamp_type != "CreateTime"
        return AppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp,
            duplicate.timestamp if stamped else -1,
            log.log_start_offset,
            0,
            duplicate=True,
        )
    return _write(log, accepted, producers, now_ms)


def append_from_leader(
    log: LogState, records: bytearray | memoryview | bytes, now_ms: int
) -> AppendInfo:
    """`Log.append_as_follower`. See there."""
    log.check_writable()
    buffer = bytearray(records) if isinstance(records, bytes) else records
    accepted = prepare_for_follower(buffer)
    end = log.log_end_offset
    if not accepted.batches:
        return AppendInfo(-1, -1, -1, -1, log.log_start_offset, 0)
    first, last = accepted.batches[0].first_offset, accepted.batches[-1].last_offset
    if first < end:
        raise UnexpectedAppendOffset(log.name, first, last, end)
    for run in _runs(accepted, log.config.segment_bytes):
        _check_fits(log, run)
        producers = _ProducerChanges(log, AppendOrigin.REPLICATION, None)
        producers.check(run)
        info = _write(log, run, producers, now_ms)
    return AppendInfo(
        first, last, info.max_timestamp, -1, log.log_start_offset, len(accepted.buffer)
    )


def _runs(accepted: Accepted, limit: int) -> Iterator[Accepted]:
    """The batches in runs that each fit into a segment: a leader may have larger segments."""
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


def _check_fits(log: LogState, accepted: Accepted) -> None:
    size = len(accepted.buffer)
    if size > log.config.segment_bytes:
        raise BatchTooLargeForSegment(log.name, size, log.config.segment_bytes)


def _write(
    log: LogState, accepted: Accepted, producers: _ProducerChanges, now_ms: int
) -> AppendInfo:
    batches = accepted.batches
    first, last = batches[0].first_offset, batches[-1].last_offset
    newest = max(batch.max_timestamp for batch in batches)
    if len(batches) == 1:
        log.write(accepted.buffer, first, last, newest, batches[0].leader_epoch, now_ms)
    else:
        log.write_many(accepted.buffer, batches, newest, now_ms)
    producers.apply()
    log.producer_state.end_offset = last + 1
    return AppendInfo(
        first, last, newest, accepted.log_append_time, log.log_start_offset, len(accepted.buffer)
    )


class _ProducerChanges:
    """What an append means for the producers, checked before and applied after the write."""

    __slots__ = ("_appends", "_completed", "_log", "_origin", "_transactional", "_verification")

    def __init__(
        self, log: LogState, origin: AppendOrigin, verification: Verification | None
    ) -> None:
        self._log = log
        self._origin = origin
        self._verification = verification
        self._appends: dict[int, ProducerAppend] = {}
        self._completed: list[CompletedTransaction] = []
        self._transactional: set[int] = set()

    def check(self, accepted: Accepted) -> AppendedBatch | None:
        """Raises ProducerError. Gives the earlier append when this one is a duplicate of it."""
        state = self._log.producer_state
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
                lowest = self._log.verifications.lowest_sequence(producer_id)
                append = state.begin_append(producer_id, self._origin, lowest)
                self._appends[producer_id] = append
            content = view[batch.position : batch.position + batch.size]
            completed = state.check(append, header, content, batch.first_offset)
            if completed is not None:
                self._completed.append(completed)
        return None

    def _check_verified(self, producer_id: int) -> None:
        if self._log.producer_state.has_open_transaction(producer_id):
            return
        if not self._log.verifications.allows(producer_id, self._verification):
            raise InvalidTransactionState(
                f"{self._log.name}: producer {producer_id} wrote outside of a verified transaction",
                producer_id,
            )

    def apply(self) -> None:
        """The batches have been written."""
        if not self._appends:
            return
        log = self._log
        state = log.producer_state
        for append in self._appends.values():
            state.update(append)
        for producer_id in self._transactional:
            log.verifications.end(producer_id)
        for completed in self._completed:
            stable = state.last_stable_offset_after(completed)
            if completed.aborted:
                entry = AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
                try:
                    log.active_segment.txn_index.append(entry)
                except OSError as error:
                    raise log.log_directory.fail(error) from error
            state.complete(completed)
        log.refresh_first_unstable()
