"""Rebuilding the producer state of a log and its transaction indexes from its batches.

A damaged transaction index makes reads of committed records, compaction and truncation of its log
fail, so it is rebuilt. Kafka recovers the whole segment (`LogSegment.sanityCheck`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from ottla.protocol.records.batch import BATCH_OVERHEAD, BatchHeader, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.steps import Steps, run_at_once
from ottla.storage.errors import CorruptIndex, SegmentOffsetOverflow
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import CorruptLog, walk_batches
from ottla.storage.log.local_log import SegmentList
from ottla.storage.log.segment import Segment
from ottla.storage.producer.producer_state import ProducerState, header_of

logger = logging.getLogger("ottla.storage")

_DAMAGE = (CorruptIndex, CorruptLog, RecordsError, SegmentOffsetOverflow)


def rebuild_producers(
    state: ProducerState,
    segments: SegmentList,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> None:
    """Load the newest snapshot at or below `log_end_offset` and replay the batches after it, also
    those below the log start that are on this disk.

    Ignores and deletes a snapshot of another log or of another offset. Writes one at the start of
    each replayed segment, so that the next rebuild is short. Raises OSError.
    """
    first = segments.first.base_offset
    state.reload(first, log_end_offset, now_ms)
    while reason := _disagreement(state, segments, now_ms):
        path = state.snapshot_path(state.snapshot_offset)
        logger.warning("Ignoring producer snapshot %s: %s", path, reason)
        state.delete_snapshot(state.snapshot_offset)
        state.reload(first, log_end_offset, now_ms)
    run_at_once(replay(state, segments, log_start_offset, log_end_offset, takes_snapshots=True))


def _disagreement(state: ProducerState, segments: SegmentList, now_ms: int) -> str:
    """Why a loaded snapshot is not of this log, "" if it may be. Raises OSError.

    A snapshot is valid in itself: that of another partition would reject producers, take their
    batches for duplicates, or hold the last stable offset for ever. So the newest batch that it
    has must be in the log, and that of the oldest open transaction of that producer as well.
    Batches that are not on this disk, or that compaction has removed, say nothing. And the last
    batch in front of the snapshot must be in it, or it is an older one under another name.
    """
    newest = max(
        (entry for entry in state.producers.values() if entry.batches),
        key=lambda entry: entry.batches[-1].last_offset,
        default=None,
    )
    for offset, producer_id in list(state.open_transactions().items())[:1]:
        header = _header_at(segments, offset)
        if header is not None and header.producer_id != producer_id:
            return _not_written(producer_id, offset)
    if newest is not None:
        claim = newest.batches[-1]
        header = _header_at(segments, claim.last_offset)
        # A producer writes to many partitions: its id alone may be at that offset by chance.
        if header is not None and (
            newest.producer_id != header.producer_id
            or claim.last_offset != header.last_offset
            or claim.last_sequence != header.last_sequence
        ):
            return _not_written(newest.producer_id, claim.last_offset)
    before = state.end_offset - 1
    if before < 0 or (newest is not None and newest.batches[-1].last_offset == before):
        return ""  # as nearly always
    header = _header_at(segments, before)
    if header is None or not header.has_producer_id:
        return ""
    entry = state.producers.get(header.producer_id)
    if header.is_control:
        is_known = entry is None or entry.transaction_first_offset < 0
    else:
        is_known = header.max_timestamp < now_ms - state.expiration_ms  # it may have expired
    return "" if is_known else f"the batch of producer {header.producer_id} before it is not in it"


def _not_written(producer_id: int, offset: int) -> str:
    return f"producer {producer_id} has not written the batch with offset {offset}"


def _header_at(segments: SegmentList, offset: int) -> BatchHeader | None:
    """The header of the batch of magic 2 that contains `offset`, if it is here and undamaged."""
    segment = segments.floor(offset)
    if segment is None:
        return None
    try:
        place = segment.find_batch(offset)
        if place is None or place.magic < 2 or place.base_offset > offset:
            return None
        return read_header(segment.log.read(place.position, BATCH_OVERHEAD))
    except (CorruptLog, CorruptIndex, RecordsError):
        return None


def replay(
    state: ProducerState,
    segments: SegmentList,
    log_start_offset: int,
    log_end_offset: int,
    *,
    takes_snapshots: bool = False,
) -> Steps[bool]:
    """Replay the batches in [state.end_offset, log_end_offset) into `state`.

    Batches that cannot be read are logged and skipped: an incomplete producer state is better than
    a log that cannot be opened. If one is damaged or missing below the log start, only those above
    it count. `takes_snapshots` writes one at the start of each segment.

    May pause after each batch. The log may be used meanwhile: returns False when retention or
    compaction has removed a segment before it was replayed.
    """
    for segment in segments.between(state.end_offset, log_end_offset):
        if segments.floor(segment.base_offset) is not segment:
            return False
        _begin_segment(state, segment, log_start_offset)
        if takes_snapshots and segment.base_offset == state.end_offset:
            state.take_snapshot()
        yield from _replay_segment(state, segment, log_start_offset, log_end_offset)
    state.end_offset = log_end_offset
    return True


def _begin_segment(state: ProducerState, segment: Segment, log_start_offset: int) -> None:
    if state.end_offset < min(segment.base_offset, log_start_offset):
        # The end of the segment before is lost, or compaction has left a gap.
        state.forget(log_start_offset)
    state.end_offset = max(state.end_offset, segment.base_offset)


def _replay_segment(
    state: ProducerState, segment: Segment, log_start_offset: int, log_end_offset: int
) -> Steps[None]:
    try:
        if state.end_offset < log_start_offset:
            try:
                yield from _replay_batches(state, segment, log_end_offset, is_deleted=True)
                return
            except _DAMAGE:
                if state.end_offset >= log_start_offset:
                    raise
            # Nothing has synced them: a new log start raises the recovery point. What they say
            # before the damage is out of date: a transaction may have ended behind it.
            state.forget(log_start_offset)
        yield from _replay_batches(state, segment, log_end_offset)
    except _DAMAGE as damage:
        logger.warning("Producer state may be incomplete, a segment is corrupt: %s", damage)


def _replay_batches(
    state: ProducerState, segment: Segment, log_end_offset: int, *, is_deleted: bool = False
) -> Steps[None]:
    """Raise CorruptIndex, CorruptLog, RecordsError.

    `is_deleted`: the first ones are below the log start. If those are damaged, the indexes stay as
    they are: rebuilt, they would end there, and nothing behind would be found.
    """
    position = 0
    if state.end_offset > segment.base_offset:
        find = segment.find_batch_by_index if is_deleted else segment.find_batch
        start = find(state.end_offset)
        if start is None:
            return
        position = start.position
    for place, batch in walk_batches(segment.log.pinned(), position, segment.size):
        if place.base_offset >= log_end_offset:
            return
        header = header_of(batch) if place.magic == 2 else None
        if header is not None:
            state.replay(header, batch)
        state.end_offset = place.last_offset + 1
        yield


def replay_batch(producers: ProducerState, batch: memoryview) -> AbortedTransaction | None:
    """Replay a batch of magic 2; the transaction that it aborts. Raises RecordsError."""
    header = read_header(batch)
    ended = producers.replay(header, batch) if header.has_producer_id else None
    if ended is None or not ended.aborted:
        return None
    stable = producers.first_open_offset()
    return AbortedTransaction(
        ended.producer_id,
        ended.first_offset,
        ended.last_offset,
        ended.last_offset + 1 if stable is None else stable,
    )


# Of each segment, when its log is opened: each takes two reads, 20 us.
_MARKERS_CHECKED = 50


def repair_transaction_indexes(
    name: str,
    segments: SegmentList,
    producers: ProducerState,
    log_start_offset: int,
    without_index: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Check the index of each segment of the log `name`, and write those that are damaged.

    And those of the segments with base offsets in `without_index`, which has the reason why they
    are known to be lost. What was written is durable. An index stays as it is if a batch of its
    segment is damaged, too. Of a transaction that begins behind a damaged batch of an earlier
    segment nothing is known. Raises OSError.
    """
    for segment in segments:
        try:
            if segment.base_offset in without_index and not segment.txn_index.exists:
                reason = without_index[segment.base_offset]
                raise CorruptIndex(segment.txn_index.path, reason)
            entries = segment.txn_index.check()
            # An index of another segment or log is valid in itself.
            for entry in entries[:: 1 + len(entries) // _MARKERS_CHECKED]:
                check_marker(segment, entry)
        except CorruptIndex as damage:
            try:
                found = rebuilt_transaction_index(
                    name, segment, segments, producers, log_start_offset, damage
                )
            except CorruptIndex:
                continue
            if found or segment.txn_index.exists:
                segment.txn_index.replace(found)
            elif segment.base_offset in without_index:
                segment.txn_index.clear_name()


def rebuilt_transaction_index(
    name: str,
    segment: Segment,
    segments: SegmentList,
    producers: ProducerState,
    log_start_offset: int,
    damage: CorruptIndex,
) -> list[AbortedTransaction]:
    """Rebuild the entries of the damaged index of a segment from the batches.

    Raises `damage` if they are damaged, too, and OSError.
    """
    base_offset = segment.base_offset
    logger.warning(
        "%s: Rebuilding the transaction index of segment %d: %s", name, base_offset, damage
    )
    try:
        return _aborted(segment, segments, producers, log_start_offset)
    except (CorruptLog, CorruptIndex, RecordsError, SegmentOffsetOverflow) as lost:
        logger.error("%s: The transaction index cannot be rebuilt: %s", name, lost)
    raise damage


def check_marker(segment: Segment, entry: AbortedTransaction) -> None:
    """Raise CorruptIndex if the batch with the marker of `entry` is another one."""
    try:
        place = segment.find_batch(entry.last_offset)
        if place is not None and place.magic == 2 and place.base_offset <= entry.last_offset:
            header = read_header(segment.log.read(place.position, BATCH_OVERHEAD))
            if header.is_control and header.producer_id == entry.producer_id:
                return
    except (CorruptLog, RecordsError):
        return  # which of both is damaged is not known
    raise CorruptIndex(
        segment.txn_index.path, f"the marker of {entry} is not at offset {entry.last_offset}"
    )


def _aborted(
    segment: Segment, segments: SegmentList, producers: ProducerState, log_start_offset: int
) -> list[AbortedTransaction]:
    """The transactions with an abort marker in the segment. Raises CorruptLog, RecordsError."""
    first = segments.first.base_offset
    state = run_at_once(producers.as_of_snapshot(first, segment.base_offset))
    run_at_once(replay(state, segments, log_start_offset, segment.base_offset))
    batches = walk_batches(segment.log.pinned(), 0, segment.size)
    replayed = (replay_batch(state, batch) for place, batch in batches if place.magic == 2)
    return [aborted for aborted in replayed if aborted is not None]
