"""Rebuilding the producer state of a log from a snapshot and the batches after it."""

from __future__ import annotations

import logging

from ottla.protocol.records.errors import RecordsError
from ottla.storage.log.batch_scan import CorruptLog, walk_batches
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.producer.producer_state import ProducerState, header_of

logger = logging.getLogger("ottla.storage")


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
        try:
            _replay_segment(state, segment, log_end_offset)
        except (CorruptLog, RecordsError) as damage:
            logger.warning("Producer state may be incomplete, a segment is corrupt: %s", damage)
    state.end_offset = log_end_offset


def _replay_segment(state: ProducerState, segment: Segment, log_end_offset: int) -> None:
    start = segment.find_batch(state.end_offset)
    if start is None:
        return
    for place, batch in walk_batches(segment.log, start.position, segment.size):
        if place.base_offset >= log_end_offset:
            return
        header = header_of(batch) if place.magic == 2 else None
        if header is not None:
            state.replay(header, batch)
        state.end_offset = place.last_offset + 1
