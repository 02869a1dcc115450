"""Rebuilding the producer state of a log from a snapshot and the batches after it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

from ottla.protocol.records.errors import RecordsError
from ottla.storage.log.batch_scan import CorruptLog, walk_batches
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.producer.producer_state import ProducerState, header_of

logger = logging.getLogger("ottla.storage")

# A step of `replay_in_steps`: about three milliseconds each.
_STEP_BATCHES = 1000
_STEP_BYTES = 4 << 20


def rebuild_producers(
    state: ProducerState,
    segments: SegmentList,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> None:
    """Loads the newest snapshot at or below `log_end_offset` and replays the batches after it.

    Writes a snapshot at the start of each replayed segment, so that the next rebuild is short.
    Raises OSError.
    """
    state.reload(log_start_offset, log_end_offset, now_ms)
    replay(state, segments, log_end_offset)


def replay(state: ProducerState, segments: SegmentList, log_end_offset: int) -> None:
    """Replays the batches in [state.end_offset, log_end_offset) into `state`.

    Batches that cannot be read are logged and skipped: an incomplete producer state is better than
    a log that cannot be opened.
    """
    for segment in segments.between(state.end_offset, log_end_offset):
        state.end_offset = max(state.end_offset, segment.base_offset)
        if segment.base_offset == state.end_offset:
            state.take_snapshot()
        for _ in _replay_segment(state, segment, log_end_offset):
            pass
    state.end_offset = log_end_offset


def replay_in_steps(
    state: ProducerState, segments: SegmentList, log_end_offset: int
) -> Generator[None, None, bool]:
    """`replay` with a yield every few milliseconds; writes no snapshots.

    The log may be used meanwhile. Returns False when retention or compaction has removed a segment
    before it was replayed.
    """
    for segment in segments.between(state.end_offset, log_end_offset):
        if segments.floor(segment.base_offset) is not segment:
            return False
        state.end_offset = max(state.end_offset, segment.base_offset)
        yield from _replay_segment(state, segment, log_end_offset)
    state.end_offset = log_end_offset
    return True


def _replay_segment(state: ProducerState, segment: Segment, log_end_offset: int) -> Iterator[None]:
    try:
        start = segment.find_batch(state.end_offset)
        if start is None:
            return
        file, begin = segment.log.pinned(), start.position
        for number, (place, batch) in enumerate(walk_batches(file, begin, segment.size), 1):
            if place.base_offset >= log_end_offset:
                return
            header = header_of(batch) if place.magic == 2 else None
            if header is not None:
                state.replay(header, batch)
            state.end_offset = place.last_offset + 1
            if number % _STEP_BATCHES == 0 or place.position - begin >= _STEP_BYTES:
                begin = place.position
                yield
    except (CorruptLog, RecordsError) as damage:
        logger.warning("Producer state may be incomplete, a segment is corrupt: %s", damage)
