"""Bringing the state of the producers to the end of a log from its batches."""

from __future__ import annotations

import logging

from ottla.protocol.records.errors import RecordsError
from ottla.storage.log.batch_scan import DamagedLog, walk_batches
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
    """Makes `state` that of `log_end_offset`: the newest snapshot below, and the batches behind it.

    Snapshots are taken at the segments that are passed, so that the next time is short. Raises
    OSError.
    """
    state.reload(log_start_offset, log_end_offset, now_ms)
    replay(state, segments, log_end_offset)


def replay(state: ProducerState, segments: SegmentList, log_end_offset: int) -> None:
    """Takes the batches in [state.end_offset, log_end_offset) into `state`.

    What cannot be read is passed over with a line in the log: better to know less about producers
    than not to start.
    """
    for segment in segments.between(state.end_offset, log_end_offset):
        state.end_offset = max(state.end_offset, segment.base_offset)
        if segment.base_offset == state.end_offset:
            state.take_snapshot()
        try:
            _replay_segment(state, segment, log_end_offset)
        except (DamagedLog, RecordsError) as damage:
            logger.warning("producers of a damaged segment may be unknown: %s", damage)
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
