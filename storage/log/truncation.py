"""Removing records at either end of a log: truncation, deletion of records, and retention.

A truncation may keep what is committed: records below the high watermark are set aside then, the
end of the first segment as a copy, the others by a rename.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

from ottla.protocol.steps import Steps, run_at_once
from ottla.storage.errors import (
    CorruptFile,
    CorruptIndex,
    DiskFull,
    OffsetOutOfRange,
    ResourceExhausted,
    StorageError,
)
from ottla.storage.files.set_aside import Reason
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog, PartitionDirectory
from ottla.storage.log.log_info import RemoteLogState
from ottla.storage.log.log_offsets import CheckpointLimit, LogOffsets
from ottla.storage.log.parts_aside import copy_end_aside, note_part
from ottla.storage.log.producer_replay import replay
from ottla.storage.log.segment import Segment, Truncation
from ottla.storage.producer.producer_state import ProducerState

logger = logging.getLogger("ottla.storage")

# Segments that are removed in one turn: three files of each are renamed, 60 us together. Each part
# also writes the recovery point and syncs it, which takes longer than all these renames.
SEGMENTS_PER_TURN = 100


class _EndCopy:
    """The copy of the end of a segment that is to be truncated at `offset`."""

    __slots__ = ("_directory", "_file", "_is_new", "_position", "offset", "path", "size", "state")

    def __init__(
        self,
        directory: PartitionDirectory,
        segment: Segment,
        position: int,
        offset: int,
        state: int,
    ) -> None:
        """`state`: how often the log was truncated. Raises OSError."""
        self._directory = directory
        self._file = segment.log.pinned()
        self._position = position
        self._is_new = False
        self.offset = offset
        self.size = segment.size - position
        self.state = state
        #: None before `run`.
        self.path: str | None = None

    def run(self) -> None:
        """Copy; durable when this returns. May run in a worker thread. Raises StorageError."""
        fs, position = self._directory.fs, self._position
        try:
            names = fs.list_files(self._directory.path)
            end = position + self.size
            path = copy_end_aside(fs, self._file, position, end, Reason.TRUNCATED_COMMITTED)
        except OSError as error:
            raise self._directory.log_directory.write_failed(error) from error
        self._is_new = path.rpartition("/")[2] not in names
        self.path = path

    def discard(self) -> None:
        """The records stay in the log."""
        if self._is_new and self.path is not None:
            with suppress(OSError):  # a second copy does no harm
                self._directory.fs.remove(self.path)


class LogTruncator:
    """Truncates one log, with its leader epochs and producer state."""

    __slots__ = ("_copy", "_epochs", "_local", "_offsets", "_prepared", "_producers")

    def __init__(
        self, local: LocalLog, offsets: LogOffsets, producers: ProducerState, epochs: LeaderEpochs
    ) -> None:
        self._local = local
        self._offsets = offsets
        self._producers = producers
        self._epochs = epochs
        # (truncations, offset) that it was prepared for, and the producer state to be used then.
        # None after a preparation: no part of the log has a producer that has not expired.
        self._prepared: tuple[int, int, ProducerState] | None = None
        self._copy: _EndCopy | None = None

    def parts(self, offset: int) -> list[int]:
        """The offsets to truncate to, descending to `offset`, each in a turn of the event loop.

        None removes more than `SEGMENTS_PER_TURN` segments. After each the log is complete: it may
        be used, and the process may end.
        """
        above = [each for each in self._local.segments.base_offsets if each > offset]
        return [*above[-SEGMENTS_PER_TURN - 1 :: -SEGMENTS_PER_TURN], offset]

    def prepare(
        self, offset: int, *, keep_committed: bool = False
    ) -> Generator[Callable[[], None] | None, None, None]:
        """Do most of the work of `truncate_to` before it, in steps.

        Replays the producer state up to `offset`: seconds for a large segment. A step may give a
        function, which raises StorageError: it lowers the recovery point on disk, or copies what
        `keep_committed` keeps. The caller runs it in a worker, or `truncate_to` does that. The log
        may be used between the steps, and `truncate_to` be called for another offset. Raises
        LogDirectoryOffline, ResourceExhausted.
        """
        stop = yield from self._prepare_producers(offset)
        if stop is None:
            return
        copy = self._copy = self._begin_copy(offset) if keep_committed else None
        try:
            if copy is not None:
                yield copy.run
            if stop < self._offsets.recovery_point:
                yield self._limit_checkpoint(stop)
        except GeneratorExit:  # the caller will not truncate
            self._offsets.checkpoint_limit = None
            if copy is not None:
                copy.discard()
                self._copy = None
            raise

    def _begin_copy(self, offset: int) -> _EndCopy | None:
        """The copy of the committed records from `offset` on in its segment; None if there are
        none. Raises StorageError."""
        local, offsets = self._local, self._offsets
        segment = local.segments.floor(offset)
        is_committed = segment is not None and self._committed([segment], offset)
        if segment is None or not is_committed or offset >= offsets.possibly_committed:
            return None
        try:
            place = segment.find_batch(offset)
            if place is None:
                return None
            return _EndCopy(local.directory, segment, place.position, offset, offsets.truncations)
        except CorruptLog:
            return None  # `truncate_to` finds it again
        except OSError as error:
            raise local.directory.log_directory.read_failed(error) from error

    def _committed(self, segments: Iterable[Segment], offset: int) -> list[Segment]:
        """The segments with committed records from `offset` on that were not deleted."""
        segment_list, offsets = self._local.segments, self._offsets
        start, committed = max(offset, offsets.log_start_offset), offsets.possibly_committed
        found = []
        for segment in segments:
            following = segment_list.after(segment)
            end = offsets.log_end_offset if following is None else following.base_offset
            if segment.size and segment.base_offset < committed and end > start:
                found.append(segment)
        return found

    def _keep_end(self, offset: int) -> _EndCopy | None:
        """The copy that was prepared, or one that is made now. Raises StorageError."""
        copy, self._copy = self._copy, None
        if copy is None or (copy.offset, copy.state) != (offset, self._offsets.truncations):
            copy = self._begin_copy(offset)
        if copy is not None and copy.path is None:
            copy.run()
        return copy

    def _remove_segments(
        self, segments: list[Segment], keep_from: int | None, copy: _EndCopy | None
    ) -> None:
        """Remove segments; sets those with committed records from `keep_from` on aside.

        The last one first: a log that a crash leaves has no gap. Raises OSError.
        """
        local, offsets = self._local, self._offsets
        kept = [] if keep_from is None else self._committed(segments, keep_from)
        local.retire_segments([each for each in segments if each not in kept], due_ms=0)
        what = (
            f"records from offset {keep_from} on were truncated, below the high watermark"
            f" {offsets.possibly_committed}"
        )
        if copy is not None and copy.path is not None:
            note_part(local.directory, copy.path, copy.size, what)
        local.set_segments_aside(kept[::-1], Reason.TRUNCATED_COMMITTED, what)

    def _limit_checkpoint(self, offset: int) -> Callable[[], None]:
        """`_lower_recovery_point` for a worker thread. The recovery point in memory stays as it is
        until the truncation, since the log is used meanwhile."""
        offsets, log_directory = self._offsets, self._local.directory.log_directory
        limit = offsets.checkpoint_limit = CheckpointLimit(offset)

        def write() -> None:
            log_directory.write_recovery_points()
            limit.is_on_disk = True

        return write

    def _prepare_producers(self, offset: int) -> Steps[int | None]:
        """Replay the producer state; returns the offset of the first batch that is truncated, or
        None if there is none, or its place is not known."""
        local, offsets, producers = self._local, self._offsets, self._producers
        log_directory = local.directory.log_directory
        log_directory.check_online()
        self._prepared = None
        segment = local.segments.floor(offset)
        if segment is None or offset >= offsets.log_end_offset:
            return None
        truncations = offsets.truncations
        try:
            place = segment.find_batch(offset)
            # In a compacted log the next batch may begin above `offset`.
            stop = offset if place is None else min(offset, place.base_offset)
            if producers.is_empty:
                return stop
            first = local.segments.first.base_offset
            state = yield from producers.as_of_snapshot(first, stop)
            complete = yield from replay(state, local.segments, offsets.log_start_offset, stop)
        except CorruptLog:
            return None  # `truncate_to` finds it again
        except OSError as error:
            raise log_directory.read_failed(error) from error
        if complete:
            self._prepared = truncations, offset, state
        return stop

    def truncate_to(self, offset: int, *, keep_committed: bool = False) -> bool:
        """Remove everything from `offset` on. False when the log ends at or below it anyway.

        A batch that contains `offset` is removed as a whole: the log may end below `offset` then.
        With `keep_committed` records below the high watermark are set aside, or nothing is removed.
        Raises LogDirectoryOffline, DiskFull, and CorruptLog, with nothing removed, if a damaged
        batch hides where `offset` is.
        """
        try:
            return self._truncate_to(offset, keep_committed)
        finally:
            # Not before: a worker thread may write the checkpoint at any time. Also after a
            # failure: a replica that leads then does not truncate again.
            self._offsets.checkpoint_limit = None

    def _truncate_to(self, offset: int, keep_committed: bool) -> bool:
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
        segment = local.segments.floor(offset)
        if segment is None:
            self._truncate_below_local(offset, keep_committed)
            return True
        copy = self._keep_end(offset) if keep_committed else None
        truncation, end = self._ready(segment, offset)
        logger.info(
            "%s: Truncating to %d, the log end offset was %d",
            directory.name,
            offset,
            offsets.log_end_offset,
        )
        try:
            above = [each for each in local.segments if each.base_offset > offset]
            self._remove_segments(above, offset if keep_committed else None, copy)
            truncation.run()
            local.use_as_active(segment)
            prepared, self._prepared = self._prepared, None
            offsets.lower_to(end)
            first = local.segments.first.base_offset
            producers.truncate_to(end, first, prepared and prepared[2])
            producers.on_high_watermark(offsets.high_watermark)
        except OSError as error:
            raise directory.log_directory.fail(error) from error
        offsets.refresh_first_unstable()
        offsets.check()
        return True

    def _ready(self, segment: Segment, offset: int) -> tuple[Truncation, int]:
        """Do all that may lack descriptors or disk space, and the end offset afterwards.

        Half of a truncation leaves a log that must not be used: it would have to go offline.
        Raises StorageError, with nothing truncated.
        """
        offsets, log_directory = self._offsets, self._local.directory.log_directory
        if self._prepared is None or self._prepared[:2] != (offsets.truncations, offset):
            run_at_once(self._prepare_producers(offset))
        try:
            truncation = segment.truncation(offset)
            # The batch that holds `offset` is removed as a whole. The log does not begin below its
            # start because of that.
            end = max(min(offset, truncation.next_offset), min(offset, offsets.log_start_offset))
            self._lower_recovery_point(end)
            # Without these epochs the records that remain for a moment are truncated just as well.
            self._epochs.truncate_from_end(end)
        except OSError as error:
            raise log_directory.write_failed(error) from error
        return truncation, end

    def _lower_recovery_point(self, offset: int) -> None:
        """On disk first: recovery after a crash must read what is appended from `offset` on."""
        offsets = self._offsets
        before = offsets.recovery_point
        if offset >= before:
            return
        offsets.recovery_point = offset
        limit = offsets.checkpoint_limit
        if limit is not None and limit.is_on_disk and limit.offset <= offset:
            return
        try:
            self._local.directory.log_directory.write_recovery_points()
        except StorageError:
            offsets.recovery_point = before  # or a retry would find nothing to write
            raise

    def _truncate_below_local(self, offset: int, keep_committed: bool) -> None:
        """Nothing stays on this disk. What is below `offset` may be in remote storage, where it is
        found by the leader epochs: they are kept in the same write that removes the others."""
        start = min(offset, self._offsets.log_start_offset)
        epochs = [(epoch, first) for epoch, first in self._epochs.entries if first < offset]
        state = RemoteLogState(epochs, None, now_ms=0)
        self.truncate_fully_and_start_at(offset, start, state, keep_committed=keep_committed)

    def truncate_fully_and_start_at(
        self,
        offset: int,
        log_start_offset: int | None = None,
        state: RemoteLogState | None = None,
        *,
        keep_committed: bool = False,
    ) -> None:
        """Remove everything on this disk. The log continues at `offset`.

        It starts there too, or at `log_start_offset`: records between both are in remote storage,
        and `state` has their leader epochs and producers. After a crash in between, the log is as
        it was, or with this state. `keep_committed` as for `truncate_to`. Raises CorruptFile,
        DiskFull, LogDirectoryOffline.
        """
        local, log_directory = self._local, self._local.directory.log_directory
        log_directory.check_online()
        # Of the segment that begins there, which is emptied and not removed.
        copy = self._keep_end(offset) if keep_committed else None
        self._lower_recovery_point(offset)
        segment, empty = self._first_segment(offset, state)
        logger.info("%s: Truncating fully and starting at offset %d", local.directory.name, offset)
        try:
            old = [each for each in local.segments if each is not segment]
            self._remove_segments(old, 0 if keep_committed else None, copy)
            if segment is None:
                segment = self._empty_segment(offset)
            if empty is None:
                local.segments.add(segment)
            else:
                empty()
            local.use_as_active(segment)
            self._reset_producers(offset, state)
        except OSError as error:
            raise log_directory.fail(error) from error
        self._offsets.restart_at(offset, log_start_offset)

    def _reset_producers(self, offset: int, state: RemoteLogState | None) -> None:
        producers = self._producers
        if state is None or state.producer_snapshot is None:
            producers.reset(offset)
            return
        if offset not in producers.snapshots:
            # It was removed together with a segment that began there.
            producers.receive_snapshot(offset, state.producer_snapshot)
        producers.reset(offset, state.producer_snapshot, state.now_ms)

    def _first_segment(
        self, offset: int, state: RemoteLogState | None
    ) -> tuple[Segment | None, Callable[[], None] | None]:
        """The first segment of the emptied log, and what empties it if it exists already.

        That needs no space and no descriptor. (None, None) for one that is damaged: it must be
        removed before another one can have its file names.

        Replaces the leader epochs, too: what needs descriptors or disk space comes before the old
        segments are removed. Raises StorageError, with nothing truncated.
        """
        local = self._local
        segment: Segment | None = None
        empty: Callable[[], None] | None = None
        try:
            if offset in local.segments.base_offsets:
                segment, empty = self._emptied(offset)
            else:
                segment = self._empty_segment(offset)
            if state is not None and state.producer_snapshot is not None:
                self._producers.receive_snapshot(offset, state.producer_snapshot)
            self._epochs.replace([] if state is None else state.epochs)
            if state is None or state.producer_snapshot is None:
                # It is of another history. After a crash between the removal of the segments and
                # `_reset_producers` it would be that of the first segment.
                self._producers.delete_snapshot(offset)
        except (OSError, CorruptFile) as error:
            if segment is not None and empty is None:
                local.remove_files(segment)
            if isinstance(error, CorruptFile):
                raise
            raise local.directory.log_directory.write_failed(error) from error
        return segment, empty

    def _emptied(self, offset: int) -> tuple[Segment | None, Callable[[], None] | None]:
        """The segment that begins at `offset`, and the function that empties it. Raises OSError."""
        local = self._local
        segment = local.segments.floor(offset)
        assert segment is not None
        created_ms = local.active.created_ms
        try:
            truncation = segment.truncation(offset)
        except (CorruptIndex, CorruptLog):
            local.check_descriptors()
            return None, None

        def empty() -> None:
            truncation.run()
            segment.created_ms = created_ms

        return segment, empty

    def _empty_segment(self, offset: int) -> Segment:
        """Raise OSError. It is as old as the active segment: rolling by time may depend on it."""
        return self._local.create_segment(offset, self._local.active.created_ms)

    def delete_records_before(self, offset: int) -> bool:
        """Advance the log start to `offset`; the next retention run deletes whole segments.

        True when it moved. Raises OffsetOutOfRange above the high watermark, LogDirectoryOffline.
        """
        offsets, directory = self._offsets, self._local.directory
        start, high_watermark = offsets.log_start_offset, offsets.high_watermark
        if offset > high_watermark:
            raise OffsetOutOfRange(directory.name, offset, start, high_watermark)
        if offset <= start:
            self.write_epochs()
            return False
        offsets.advance_log_start(offset)
        try:
            self._epochs.truncate_from_start(offset)
        except OSError as error:
            self._epochs_not_written(error)
        return True

    def write_epochs(self) -> None:
        """Write the epochs that begin at the log start, where that failed. A start needs them to
        believe the log start. Raises LogDirectoryOffline."""
        try:
            self._epochs.write_again()
        except OSError as error:
            self._epochs_not_written(error)

    def _epochs_not_written(self, error: OSError) -> None:
        """Deleting must work on a full disk, and without descriptors. Until the epochs are written
        the records come back after a crash."""
        failure = self._local.directory.log_directory.write_failed(error)
        if not isinstance(failure, DiskFull | ResourceExhausted):
            raise failure from error


# (segment, the next one) -> whether it may be deleted
Predicate = Callable[[Segment, Segment | None], bool]


class LogRetention:
    """Applies `retention.ms`, `retention.bytes` and the log start offset to one log.

    If segments are copied to remote storage, `local.retention.ms` and `local.retention.bytes` are
    the limits, and a segment is deleted only after it was copied. The local log start offset
    advances then, and the log start offset does not.
    """

    __slots__ = ("_local", "_offsets", "_truncator")

    def __init__(self, local: LocalLog, offsets: LogOffsets, truncator: LogTruncator) -> None:
        self._local = local
        self._offsets = offsets
        self._truncator = truncator

    def delete_old_segments(self, now_ms: int) -> Steps[int]:
        """Delete the segments that retention does not keep. Returns their number.

        Below the log start in any case; by size and time only if `cleanup.policy` has `delete`. May
        pause after each segment: the log may be used, truncated or deleted meanwhile. Raises
        DiskFull, LogDirectoryOffline.
        """
        self._local.directory.log_directory.check_online()
        start, config = self._offsets.local_log_start_offset, self._local.config
        reason = f"log start offset {start} breach"
        deleted = yield from self._delete(_is_below(start), reason, now_ms, moves_start=False)
        scope = "local " if config.copies_to_remote else ""
        if config.delete and self._local.config is config:
            limit = config.local_limit_bytes
            reason = f"{scope}retention size {limit} breach"
            deleted += yield from self._delete(self._exceeds_size(), reason, now_ms)
        if config.delete and self._local.config is config:
            limit = config.local_limit_ms
            reason = f"{scope}retention time {limit}ms breach"
            if (yield from self._headers_agree(limit, now_ms)):
                deleted += yield from self._delete(_is_older(limit, now_ms), reason, now_ms)
        return deleted

    def _headers_agree(self, limit_ms: int, now_ms: int) -> Steps[bool]:
        """Read the headers of segments that have expired though their files are new.

        Returns False if the log was changed meanwhile: the next run does it again.

        The time index alone does not delete records, since somebody may have cut it short or
        replaced it. That the file is old agrees with it; otherwise the batches have to. Segments
        of this process have a newest timestamp that was taken from the batches.
        """
        local, truncations = self._local, self._offsets.truncations
        is_older = _is_older(limit_ms, now_ms)
        try:
            for segment in local.segments:
                if not is_older(segment, None):
                    break
                if not segment.newest_is_from_index or now_ms - segment.modified_ms() > limit_ms:
                    continue
                for _ in segment.newest_of_headers():
                    yield
                    if (
                        local.closed
                        or local.segments.floor(segment.base_offset) is not segment
                        or self._offsets.truncations != truncations
                    ):
                        return False
        except OSError as error:
            raise local.directory.log_directory.write_failed(error) from error
        return True

    def is_expired(self, now_ms: int) -> bool:
        """Whether retention by time would delete all records here, or there is one by size.

        Records are appended in the order of time, mostly: the last segments have the newest. Raises
        OSError.
        """
        config = self._local.config
        if not config.delete:
            return False
        is_older = _is_older(config.retention_ms, now_ms)
        last = list(self._local.segments)[-2:]
        return config.retention_bytes >= 0 or all(is_older(s, None) for s in last if s.size)

    def _delete(
        self, predicate: Predicate, reason: str, now_ms: int, *, moves_start: bool = True
    ) -> Steps[int]:
        local, deleted, first, last = self._local, 0, -1, -1
        config, truncations = local.config, self._offsets.truncations
        # `predicate` is of these settings and of this log: the next run has those of then.
        while (
            not local.closed
            and local.config is config
            and (self._offsets.truncations == truncations)
        ):
            local.directory.log_directory.check_online()
            try:
                segment = self._delete_first(predicate, now_ms, moves_start=moves_start)
            except DiskFull:
                if not deleted:
                    raise
                break  # those that were deleted make room for a new segment
            if segment is None:
                break
            first = first if deleted else segment.base_offset
            last = segment.base_offset
            deleted += 1
            yield
        if deleted:
            logger.info(
                "%s: Deleted %d segments, base offsets %d to %d, due to %s",
                local.directory.name,
                deleted,
                first,
                last,
                reason,
            )
        return deleted

    def _deletable(self, predicate: Predicate) -> tuple[Segment | None, bool]:
        """The first segment, if `predicate` holds for it and it may be deleted.

        And whether it is the active one, which is to be copied to remote storage first.

        Never one with records at or above the high watermark, never an empty active segment, and
        none that has to be copied: what is missing on this disk above the durable log start is in
        remote storage.
        """
        offsets, local = self._offsets, self._local
        segment = local.segments.first
        following = local.segments.after(segment)
        if following is None and segment.size == 0:
            return None, False
        end = offsets.log_end_offset if following is None else following.base_offset
        if end > offsets.high_watermark or not predicate(segment, following):
            return None, False
        deleted_below = min(offsets.log_start_offset, offsets.durable_log_start)
        is_deleted = following is not None and end <= deleted_below
        copies = local.config.copies_to_remote
        if copies and not is_deleted and end - 1 > offsets.highest_remote_offset:
            return None, following is None
        return segment, False

    def _exceeds_size(self) -> Predicate:
        limit = self._local.config.local_limit_bytes
        excess = self._local.size_in_bytes - limit

        def predicate(segment: Segment, _: Segment | None) -> bool:
            nonlocal excess
            if limit < 0 or excess < segment.size:
                return False
            excess -= segment.size
            return True

        return predicate

    def _delete_first(
        self, predicate: Predicate, now_ms: int, *, moves_start: bool
    ) -> Segment | None:
        """Delete the first segment of the log if it is to be deleted, and return it."""
        local = self._local
        try:
            segment, closes_active = self._deletable(predicate)
            if closes_active or segment is local.active:
                # As in Kafka: the last records of a quiet partition expire, too.
                local.roll(now_ms, self._offsets.log_end_offset)
            if segment is None:
                return None
            local.retire_segments([segment], now_ms + local.config.file_delete_delay_ms)
            start = local.segments.first.base_offset
            if local.config.copies_to_remote or not moves_start:
                self._offsets.advance_local_log_start(start)
            else:
                self._truncator.delete_records_before(start)
        except OSError as error:
            raise local.directory.log_directory.write_failed(error) from error
        return segment


def _is_below(log_start_offset: int) -> Predicate:
    return lambda _, following: following is not None and following.base_offset <= log_start_offset


def _is_older(retention_ms: int, now_ms: int) -> Predicate:
    if retention_ms < 0:
        return lambda _, __: False
    return lambda segment, _: now_ms - _largest_timestamp(segment) > retention_ms


def _largest_timestamp(segment: Segment) -> int:
    try:
        return segment.largest_timestamp()
    except CorruptLog:
        # The time index has the newest timestamp of an inactive segment: it expires like others.
        newest = segment.time_index.last()[0]
        return newest if newest >= 0 else segment.modified_ms()
