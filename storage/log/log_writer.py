"""Writing validated batches into the active segment: rolling, and leader epochs."""

from __future__ import annotations

from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.records.validation import AcceptedBatch


class LogWriter:
    """Advances the log end by batches that need no further check.

    Raises DiskFull, with nothing written, or LogDirectoryOffline. Does not flush: the caller calls
    `LogFlusher.require_flush` when a write returns True, after it has updated the producer state.
    Batches that are written but not flushed must be recognised when the producer sends them again.
    """

    __slots__ = ("_epochs", "_local", "_offsets")

    def __init__(self, local: LocalLog, offsets: LogOffsets, epochs: LeaderEpochs) -> None:
        self._local = local
        self._offsets = offsets
        self._epochs = epochs

    def write(
        self,
        batch: bytearray | memoryview,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> bool:
        """Writes one batch at the log end. True when `flush.messages` requires a flush."""
        local, offsets = self._local, self._offsets
        assert offsets.log_end_offset <= first_offset <= last_offset
        if leader_epoch != self._epochs.latest_epoch:
            self.assign_epoch(leader_epoch, first_offset)
        segment = local.active
        # The limits decide nearly every append without a call.
        if (
            not 0 <= max_timestamp <= local.roll_timestamp
            or segment.log.size + len(batch) > local.roll_bytes
            or last_offset > local.roll_offset
            or segment.index_entries_left <= 0
        ) and local.must_roll(len(batch), max_timestamp, last_offset, now_ms):
            segment = self.roll(first_offset, last_offset, now_ms)
        try:
            segment.append(batch, last_offset, max_timestamp, first_offset)
        except OSError as error:
            raise local.write_failed(error) from error
        offsets.log_end_offset = end = last_offset + 1
        return end - offsets.recovery_point >= local.config.flush_messages

    def write_many(
        self,
        buffer: bytearray | memoryview,
        batches: list[AcceptedBatch],
        max_timestamp: int,
        now_ms: int,
    ) -> bool:
        """Writes several batches at the log end, with one write. Returns as `write`."""
        local, offsets = self._local, self._offsets
        first, last = batches[0], batches[-1]
        for batch in batches:
            if batch.header is None:
                self.forget_epochs(batch.first_offset)
            elif batch.leader_epoch != self._epochs.latest_epoch:
                self.assign_epoch(batch.leader_epoch, batch.first_offset)
        segment = local.active
        if local.must_roll(len(buffer), max_timestamp, last.last_offset, now_ms):
            segment = self.roll(first.first_offset, last.last_offset, now_ms)
        try:
            segment.append_many(buffer, batches, last.last_offset)
        except OSError as error:
            raise local.write_failed(error) from error
        offsets.log_end_offset = last.last_offset + 1
        return offsets.log_end_offset - offsets.recovery_point >= local.config.flush_messages

    def roll(self, first_offset: int, last_offset: int, now_ms: int) -> Segment:
        """Starts a segment for batches with these offsets, of which a follower has a gap before.

        It begins at the log end nevertheless. Recovery would take the gap for lost records, if
        nothing says that compaction left it: the topic may have another `cleanup.policy` by now.
        Of compressed messages of an old format, which begin below `first_offset`, those below its
        base offset would not be found once it is the first. Kafka begins it at the batch.
        """
        base_offset = max(self._offsets.log_end_offset, last_offset - MAX_RELATIVE_OFFSET)
        return self._local.roll(now_ms, min(base_offset, first_offset))

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """`Log.assign_epoch`."""
        if leader_epoch >= 0:
            try:
                self._epochs.assign(leader_epoch, start_offset)
            except OSError as error:
                raise self._local.write_failed(error) from error

    def replace_epochs(self, entries: list[tuple[int, int]]) -> None:
        """`Log.replace_epochs`."""
        try:
            self._epochs.replace(entries)
        except OSError as error:
            raise self._local.write_failed(error) from error

    def forget_epochs(self, offset: int) -> None:
        """Before a message of an old format, which has no epoch: followers truncate to the high
        watermark from then on, as in Kafka, since epochs do not tell what is in the log."""
        try:
            self._epochs.forget_up_to(offset)
        except OSError as error:
            raise self._local.write_failed(error) from error
