"""Cutting the end off a log: what a follower does before it follows another leader."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.storage.log.producer_replay import rebuild_producers

if TYPE_CHECKING:
    from ottla.storage.log.log_state import LogState

logger = logging.getLogger("ottla.storage")


def truncate_to(log: LogState, offset: int) -> bool:
    """`Log.truncate_to`. See there."""
    if offset < 0:
        raise ValueError(f"{log.name} cannot be truncated to offset {offset}")
    log.log_directory.check_online()
    if offset >= log.log_end_offset:
        # A leader notes its epoch before it has written anything in it: another leader's log has
        # something else, or nothing, in its place.
        log.leader_epochs.truncate_from_end(log.log_end_offset)
        log.note_epochs_changed()
        return False
    log.generation += 1
    logger.info("%s: truncating to offset %d from %d", log.name, offset, log.log_end_offset)
    if log.segments.first.base_offset > offset:
        truncate_fully_and_start_at(log, offset)
        return True
    try:
        later = [s for s in log.segments if s.base_offset > offset]
        log.retire_segments(later, due_ms=0)
        active = log.segments.active
        active.truncate_to(offset)
        log.replace_active(active)
        # The batch that holds `offset` is gone as a whole; the log does not begin before its start
        # because of that.
        end = max(min(offset, active.next_offset()), min(offset, log.log_start_offset))
        log.log_end_offset = end
        lowered = end < log.recovery_point
        log.recovery_point = min(log.recovery_point, end)
        log.log_start_offset = min(log.log_start_offset, end)
        log.high_watermark = min(log.high_watermark, end)
        log.leader_epochs.truncate_from_end(end)
        log.note_epochs_changed()
        rebuild_producers(log.producer_state, log.segments, log.log_start_offset, end, now_ms=0)
        log.producer_state.on_high_watermark(log.high_watermark)
        if lowered:
            log.log_directory.write_recovery_points()
    except OSError as error:
        raise log.log_directory.fail(error) from error
    log.refresh_first_unstable()
    log.check_bounds()
    return True


def truncate_fully_and_start_at(log: LogState, offset: int) -> None:
    """`Log.truncate_fully_and_start_at`. See there."""
    log.log_directory.check_online()
    log.generation += 1
    logger.info("%s: dropping all records, beginning again at offset %d", log.name, offset)
    try:
        log.retire_segments(list(log.segments), due_ms=0)
        segment = log.new_segment(offset, created_ms=0)
        segment.create_files(log.config.segment_bytes if log.config.preallocate else 0)
        log.segments.add(segment)
        log.replace_active(segment)
        log.leader_epochs.clear()
        log.note_epochs_changed()
        log.producer_state.reset(offset)
    except OSError as error:
        raise log.log_directory.fail(error) from error
    log.log_start_offset = log.log_end_offset = offset
    log.high_watermark = log.recovery_point = offset
    log.refresh_first_unstable()
    log.check_bounds()
    log.log_directory.write_recovery_points()
