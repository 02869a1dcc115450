"""Removing records at either end of a log: truncation, and advancing the log start offset."""

from __future__ import annotations

import logging

from ottla.storage.errors import DiskFull, OffsetOutOfRange, ResourceExhausted
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.producer_replay import rebuild_producers
from ottla.storage.producer.producer_state import ProducerState

logger = logging.getLogger("ottla.storage")


class LogTruncator:
    """Truncates one log, with its leader epochs and producer state."""

    __slots__ = ("_epochs", "_local", "_offsets", "_producers")

    def __init__(
        self, local: LocalLog, offsets: LogOffsets, producers: ProducerState, epochs: LeaderEpochs
    ) -> None:
        self._local = local
        self._offsets = offsets
        self._producers = producers
        self._epochs = epochs

    def truncate_to(self, offset: int) -> bool:
        """`Log.truncate_to`."""
        local, offsets, producers, epochs = (
            self._local,
            self._offsets,
            self._producers,
            self._epochs,
        )
        directory = local.directory
        if offset < 0:
            raise ValueError(f"{directory.name} cannot be truncated to offset {offset}")
        directory.log_directory.check_online()
        if offset >= offsets.log_end_offset:
            # A leader assigns its epoch before it has written anything in it. Another leader's log
            # may have a different epoch at that offset, or none.
            try:
                epochs.truncate_from_end(offsets.log_end_offset)
            except OSError as error:
                raise directory.log_directory.write_failed(error) from error
            return False
        self._check_descriptors()
        logger.info(
            "%s: Truncating to %d, the log end offset was %d",
            directory.name,
            offset,
            offsets.log_end_offset,
        )
        if local.segments.first.base_offset > offset:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            local.retire_segments([s for s in local.segments if s.base_offset > offset], due_ms=0)
            active = local.segments.active
            active.truncate_to(offset)
            local.use_as_active(active)
            # The batch that holds `offset` is removed as a whole. The log does not begin below its
            # start because of that.
            end = max(min(offset, active.next_offset()), min(offset, offsets.log_start_offset))
            lowered = offsets.lower_to(end)
            epochs.truncate_from_end(end)
            rebuild_producers(producers, local.segments, offsets.log_start_offset, end, now_ms=0)
            producers.on_high_watermark(offsets.high_watermark)
            if lowered:
                directory.log_directory.write_recovery_points()
        except OSError as error:
            raise directory.log_directory.fail(error) from error
        offsets.refresh_first_unstable()
        offsets.check()
        return True

    def _check_descriptors(self) -> None:
        # Half of a truncation leaves a log that must not be used: it goes offline then.
        local = self._local
        try:
            local.check_descriptors()
        except OSError as error:
            raise local.directory.log_directory.write_failed(error) from error

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """`Log.truncate_fully_and_start_at`."""
        local, log_directory = self._local, self._local.directory.log_directory
        log_directory.check_online()
        self._check_descriptors()
        logger.info("%s: Truncating fully and starting at offset %d", local.directory.name, offset)
        try:
            local.retire_segments(list(local.segments), due_ms=0)
            segment = local.create_segment(offset, created_ms=0)
            local.segments.add(segment)
            local.use_as_active(segment)
            self._epochs.clear()
            self._producers.reset(offset)
        except OSError as error:
            raise log_directory.fail(error) from error
        self._offsets.restart_at(offset)
        log_directory.write_recovery_points()

    def delete_records_before(self, offset: int) -> bool:
        """`Log.delete_records_before`."""
        offsets, directory = self._offsets, self._local.directory
        start, high_watermark = offsets.log_start_offset, offsets.high_watermark
        if offset > high_watermark:
            raise OffsetOutOfRange(directory.name, offset, start, high_watermark)
        if offset <= start:
            return False
        offsets.advance_log_start(offset)
        try:
            self._epochs.truncate_from_start(offset)
        except OSError as error:
            failure = directory.log_directory.write_failed(error)
            # Deleting must work on a full disk, and without descriptors. Too many epochs in the
            # file do no harm.
            if not isinstance(failure, DiskFull | ResourceExhausted):
                raise failure from error
        return True
