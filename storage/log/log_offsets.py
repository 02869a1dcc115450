"""The offsets that describe a log: start, last stable offset, high watermark, end.

log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset
log_start_offset <= local_log_start_offset <= log_end_offset
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.producer.producer_state import ProducerState

if TYPE_CHECKING:
    from ottla.storage.log.flush import Flush


class CheckpointLimit:
    """The recovery point on disk is at most `offset`, for a truncation that is being prepared."""

    __slots__ = ("is_on_disk", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.is_on_disk = False


class LogOffsets:
    """The offsets of one log, all exclusive ends but for `log_start_offset`.

    `durable_log_start` is the log start offset in the checkpoint. Of a log with remote segments,
    what is missing on this disk was deleted below it, and was copied above it.

    Offsets from `log_start_offset` to `local_log_start_offset` are in remote storage only. Without
    tiered storage both are the same. `highest_remote_offset` is the last one there, or -1.
    Everything below `recovery_point` is on disk. `first_unstable_offset` is a copy of the one of
    the producer state, so that reading the last stable offset is cheap. `truncations` counts how
    often the end was truncated: what was read before a truncation may not be relied upon after it.
    `flushing` has the flushes that run; a truncation lowers their offset, because other batches may
    be appended there that they do not include. `flush_required`: `flush.messages` or more records
    are not on disk, and nothing above the recovery point may be acknowledged before a flush.
    `failed_flushes` counts those that failed. `checkpoint_limit` is that of the truncation that is
    being prepared. `missing_from`: a power failure may have lost records from this offset on, with
    others behind them; a follower fetches them again. `committed_limit`: the high watermark at the
    start is not known, and records below this offset may have been below it.
    """

    __slots__ = (
        "_producers",
        "checkpoint_limit",
        "committed_limit",
        "durable_log_start",
        "failed_flushes",
        "first_unstable_offset",
        "flush_required",
        "flushing",
        "high_watermark",
        "highest_remote_offset",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "missing_from",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        producers: ProducerState,
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        local_log_start_offset: int | None = None,
    ) -> None:
        self._producers = producers
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = (
            log_start_offset if local_log_start_offset is None else local_log_start_offset
        )
        self.durable_log_start = log_start_offset
        self.highest_remote_offset = -1
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark = log_start_offset
        self.truncations = 0
        self.flushing: list[Flush] = []
        self.flush_required = False
        self.failed_flushes = 0
        self.checkpoint_limit: CheckpointLimit | None = None
        self.missing_from: int | None = None
        self.committed_limit = 0
        self.first_unstable_offset = producers.first_unstable_offset

    def __repr__(self) -> str:
        return (
            f"LogOffsets({self.log_start_offset} to {self.log_end_offset}, high watermark"
            f" {self.high_watermark}, recovery point {self.recovery_point})"
        )

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided. Never above the high watermark."""
        unstable = self.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def acknowledgeable_offset(self) -> int:
        """Below it `flush.messages` does not delay an acknowledgement."""
        return self.recovery_point if self.flush_required else self.log_end_offset

    @property
    def possibly_committed(self) -> int:
        """Records below it are committed, as far as this replica knows, or may be."""
        return max(self.high_watermark, self.committed_limit)

    @property
    def recovery_point_on_disk(self) -> int:
        """The recovery point for the checkpoint. Safe in a worker thread."""
        limit = self.checkpoint_limit
        return self.recovery_point if limit is None else min(self.recovery_point, limit.offset)

    def refresh_first_unstable(self) -> None:
        """Read the first unstable offset again: transactions began or ended."""
        self.first_unstable_offset = self._producers.first_unstable_offset

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, limited to log start and log end. Returns the new one."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if offset != self.high_watermark:
            self.high_watermark = offset
            if self.first_unstable_offset is not None:
                self._producers.on_high_watermark(offset)
                self.refresh_first_unstable()
        return offset

    def advance_log_start(self, offset: int) -> None:
        """Records below `offset`, which is at or below the high watermark, are deleted."""
        self.log_start_offset = offset
        self.local_log_start_offset = max(self.local_log_start_offset, offset)
        self.recovery_point = max(self.recovery_point, offset)
        self.refresh_first_unstable()
        self.check()

    def advance_local_log_start(self, offset: int) -> None:
        """Records below `offset` are in remote storage only. A lower offset changes nothing."""
        self.local_log_start_offset = max(self.local_log_start_offset, offset)
        self.recovery_point = max(self.recovery_point, offset)
        self.check()

    def lower_log_start(self, offset: int) -> None:
        """Records from `offset` on are in remote storage, as another copy of this log knows.

        A higher offset changes nothing.
        """
        self.log_start_offset = min(self.log_start_offset, offset)
        self.durable_log_start = min(self.durable_log_start, offset)

    def lower_to(self, end: int) -> None:
        """The log was truncated and ends at `end` now."""
        self.log_end_offset = end
        self._truncated(end)
        self.recovery_point = min(self.recovery_point, end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_log_start = min(self.durable_log_start, end)
        self.local_log_start_offset = min(self.local_log_start_offset, end)
        self._forget_remote(end)
        self.high_watermark = min(self.high_watermark, end)
        self._forget_removed(end)

    def _truncated(self, end: int) -> None:
        self.truncations += 1
        for flush in self.flushing:
            flush.offset = min(flush.offset, end)

    def _forget_removed(self, end: int) -> None:
        self.committed_limit = min(self.committed_limit, end)
        if self.missing_from is not None and self.missing_from >= end:
            self.missing_from = None

    def _forget_remote(self, end: int) -> None:
        """Remote records from `end` on are of another history, until it is known again."""
        self.highest_remote_offset = min(self.highest_remote_offset, end - 1)

    def restart_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """The log is empty on this disk and continues at `offset`; `log_start_offset` is lower if
        there are records in remote storage."""
        self._truncated(offset)
        self._forget_remote(offset)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.durable_log_start = min(self.durable_log_start, self.log_start_offset)
        self.local_log_start_offset = self.log_end_offset = offset
        self.high_watermark = self.recovery_point = offset
        self.checkpoint_limit = self.missing_from = None
        self.committed_limit = 0
        self.refresh_first_unstable()
        self.check()

    def check(self) -> None:
        """Assert the invariants between the offsets."""
        stable = self.last_stable_offset
        assert self.log_start_offset <= stable <= self.high_watermark <= self.log_end_offset
        assert self.log_start_offset <= self.local_log_start_offset <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
