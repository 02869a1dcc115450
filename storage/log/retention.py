"""Which segments a log does not need any more: by age, by size, and below the log start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.storage.errors import DiskFull
from ottla.storage.log.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log_state import LogState

logger = logging.getLogger("ottla.storage")

# (segment, the one behind it) -> whether it may go
Predicate = Callable[[Segment, Segment | None], bool]


def delete_old_segments(log: LogState, now_ms: int) -> int:
    """`Log.delete_old_segments`. See there.

    Below the log start in any case; by time and size only where `cleanup.policy` has `delete`.
    """
    log.log_directory.check_online()
    deleted = _delete(log, "they are below the log start", _below_start(log), now_ms)
    if log.config.delete:
        deleted += _delete(log, "retention.bytes is exceeded", _too_much(log), now_ms)
        deleted += _delete(log, "retention.ms is exceeded", _too_old(log, now_ms), now_ms)
    return deleted


def choose(log: LogState, wanted: Predicate) -> list[Segment]:
    """The oldest segments for which `wanted` holds, up to the first for which it does not.

    Never one with records at or above the high watermark, and never an empty active segment.
    """
    chosen = []
    segments = list(log.segments)
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        if following is None and segment.size == 0:
            break
        end = log.log_end_offset if following is None else following.base_offset
        if end > log.high_watermark or not wanted(segment, following):
            break
        chosen.append(segment)
    return chosen


def _below_start(log: LogState) -> Predicate:
    start = log.log_start_offset
    return lambda _, following: following is not None and following.base_offset <= start


def _too_much(log: LogState) -> Predicate:
    limit = log.config.retention_bytes
    excess = log.size_in_bytes - limit

    def wanted(segment: Segment, _: Segment | None) -> bool:
        nonlocal excess
        if limit < 0 or excess < segment.size:
            return False
        excess -= segment.size
        return True

    return wanted


def _too_old(log: LogState, now_ms: int) -> Predicate:
    limit = log.config.retention_ms
    return lambda segment, _: limit >= 0 and now_ms - segment.largest_timestamp() > limit


def _delete(log: LogState, reason: str, wanted: Predicate, now_ms: int) -> int:
    try:
        chosen = choose(log, wanted)
        if not chosen:
            return 0
        if chosen[-1] is log.active_segment:
            try:
                log.roll(now_ms)
            except DiskFull:
                chosen.pop()  # the others go, which makes the room for it
                if not chosen:
                    raise
        logger.info(
            "%s: deleting %d segments, offsets %d to %d, because %s",
            log.name,
            len(chosen),
            chosen[0].base_offset,
            chosen[-1].base_offset,
            reason,
        )
        log.retire_segments(chosen, now_ms + log.config.file_delete_delay_ms)
        log.delete_records_before(log.segments.first.base_offset)
    except OSError as error:
        raise log.log_directory.refused(error) from error
    return len(chosen)
