"""One compaction of one log: keeps the newest record of each key. Kafka's `Cleaner`.

Three steps, so that appends go on meanwhile:

1. `Compaction(...)`, on the thread that owns the log: selects the segments to compact;
2. `run`, in a worker thread: reads inactive segments, writes and syncs `.cleaned` segments;
3. `commit`, on the thread that owns the log: renames them to `.swap`, replaces the old segments and
   removes the suffix. `sync` after that may run in a worker thread.

A crash before the renaming leaves `.cleaned` files, which the next start deletes. A crash after it
leaves `.swap` files, whose swap the next start completes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from ottla.protocol.records.batch import read_header
from ottla.storage.cleaner.compaction_filter import (
    Filter,
    Kept,
    LastRecord,
    TransactionTracker,
    filter_old,
    read_old,
    records_of,
)
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.config import LogConfig
from ottla.storage.files.fs import READ_ONLY
from ottla.storage.files.layout import CLEANED_SUFFIX, SWAP_SUFFIX
from ottla.storage.files.log_directory import NO_SPACE
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.batch_scan import Place, check_checksum, walk_batches
from ottla.storage.log.log import Log
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.log.segment_file import SegmentFile
from ottla.storage.records.record_outline import outline

logger = logging.getLogger("ottla.storage")

# Called with the number of bytes read or written; may sleep to limit the rate.
Throttle = Callable[[int], None]


class CompactionCancelled(Exception):
    """The compaction was cancelled: the log is deleted or moved, or the broker shuts down."""


class Source(NamedTuple):
    """A segment to compact, as of the start of the compaction."""

    segment: Segment
    base_offset: int
    path: str
    size: int
    index_bytes: int
    time_index_bytes: int


class CompactionStats:
    """Counters of one compaction."""

    __slots__ = ("batches_read", "bytes_read", "bytes_written", "keys", "map_bytes_read")

    def __init__(self) -> None:
        self.keys = 0
        self.map_bytes_read = 0
        self.batches_read = 0
        self.bytes_read = 0
        self.bytes_written = 0

    def __repr__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)


class Compaction:
    """One compaction of `log`; see the module for its steps."""

    __slots__ = (
        "_aborted",
        "_cancelled",
        "_config",
        "_files",
        "_first_dirty_offset",
        "_fs",
        "_last_records",
        "_map",
        "_now_ms",
        "_prepare",
        "_results",
        "_sources",
        "_throttle",
        "_truncations",
        "_uncleanable_offset",
        "error",
        "has_replaced",
        "is_synced",
        "log",
        "stats",
        "sync_failed",
    )

    def __init__(
        self,
        log: Log,
        *,
        first_dirty_offset: int,
        uncleanable_offset: int,
        memory_bytes: int,
        now_ms: int,
        throttle: Throttle = lambda _: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Compact the segments below `uncleanable_offset`, a base offset.

        Everything below `first_dirty_offset` was compacted before. Everything below
        `uncleanable_offset` must be flushed: a record is removed because of a newer one, which a
        power failure must not remove. `run` begins with `prepare`, whose error ends it.
        """
        self.log = log
        self.stats = CompactionStats()
        self.error: Exception | None = None
        #: Segments were replaced: `sync` is needed, also if `commit` returned False.
        self.has_replaced = False
        #: Whether `sync` has made the new names durable, or could not.
        self.is_synced = self.sync_failed = False
        self._fs = log.log_directory.fs
        self._config: LogConfig = log.config
        self._truncations = log.truncations
        self._first_dirty_offset = first_dirty_offset
        self._uncleanable_offset = uncleanable_offset
        self._now_ms = now_ms
        self._throttle = throttle
        self._prepare = prepare
        self._map = OffsetMap(memory_bytes)
        self._cancelled = False
        self._files = OpenFiles()
        self._results: list[tuple[Segment, list[Segment]]] = []
        closed = [s for s in log.segments if s.base_offset < uncleanable_offset]
        self._sources = [_source(segment) for segment in closed]
        # Of all segments: the marker of a transaction may be in a later segment.
        self._aborted = [
            transaction
            for segment in log.segments
            if segment.txn_index.exists
            for transaction in segment.txn_index.entries()
        ]
        self._last_records = {
            producer_id: LastRecord(entry.last_offset, entry.epoch)
            for producer_id, entry in log.producer_state.producers.items()
        }

    @property
    def is_first(self) -> bool:
        """Whether the log was never compacted, and `run` writes its first checkpoint."""
        return self._prepare is not None

    @property
    def end_offset(self) -> int:
        """The first dirty offset of the next compaction."""
        return self._map.latest_offset + 1

    def cancel(self) -> None:
        """Make `run` stop soon. May be called from any thread."""
        self._cancelled = True

    # --- in a worker thread ------------------------------------------------------------------

    def run(self) -> None:
        """Write the compacted segments. Stores an error in `error`. Safe in a worker thread."""
        try:
            if self._prepare is not None:
                self._prepare()
            self._build_map()
            keep = Filter(
                self._map,
                TransactionTracker(self._aborted),
                self._last_records,
                self._now_ms,
                self._config.delete_retention_ms,
                self._first_dirty_offset,
            )
            for group in self._groups():
                self._compact(group, keep)
            # The gaps of the compacted segments must be below the recovery point on disk.
            self.log.log_directory.write_recovery_points()
        except Exception as error:  # for the thread that owns the log
            self.error = error
            self.discard()

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise CompactionCancelled(f"compaction of {self.log.name} was cancelled")

    def _build_map(self) -> None:
        start = self._first_dirty_offset
        dirty = [
            source
            for index, source in enumerate(self._sources)
            if index + 1 == len(self._sources) or self._sources[index + 1].base_offset > start
        ]
        transactions = TransactionTracker(t for t in self._aborted if t.last_offset >= start)
        self._map.latest_offset = start - 1
        for index, source in enumerate(dirty):
            if not self._map_segment(source, start, transactions):
                break  # the map is full: the next compaction continues here
            following = dirty[index + 1].base_offset if index + 1 < len(dirty) else None
            end = self._uncleanable_offset if following is None else following
            self._map.latest_offset = max(self._map.latest_offset, end - 1)
        self.stats.keys = len(self._map)
        if dirty and self._map.latest_offset < start:
            raise ValueError(
                f"the keys of a single batch do not fit into the offset map of {self._map.capacity}"
                " keys; increase log.cleaner.dedupe.buffer.size"
            )

    def _map_segment(self, source: Source, start: int, transactions: TransactionTracker) -> bool:
        file = SegmentFile(self._fs, source.path, source.size, self._files)
        for place, batch in walk_batches(file, 0, source.size):
            self._read(place)
            if place.last_offset < start:
                continue
            if place.magic == 2:
                header = read_header(batch)
                if not header.is_control and not transactions.is_unneeded(header, batch):
                    data = records_of(header, batch)
                    lines = outline(data, 0, len(data), header.record_count, only_keys=True)
                    base = header.base_offset
                    offsets = list(map(base.__add__, lines.offset_deltas))
                    if not self._map.put_all(lines.keys, offsets, start):
                        return False
                elif header.is_control:
                    transactions.is_unneeded(header, batch)
            elif not self._map_old(batch, start):
                return False
            self._map.latest_offset = max(self._map.latest_offset, place.last_offset)
            self.stats.map_bytes_read += place.size
        file.close()
        return True

    def _map_old(self, batch: memoryview, start: int) -> bool:
        records = read_old(batch)
        return self._map.put_all([r.key for r in records], [r.offset for r in records], start)

    def _read(self, place: Place) -> None:
        self._check_cancelled()
        self._throttle(place.size)

    def _groups(self) -> list[list[Source]]:
        """Groups of segments that fit into one segment together; each becomes one segment."""
        config = self._config
        groups: list[list[Source]] = []
        size = index_bytes = time_index_bytes = 0
        wanted = [s for s in self._sources if s.base_offset <= self._map.latest_offset]
        for number, source in enumerate(wanted):
            following = wanted[number + 1].base_offset if number + 1 < len(wanted) else None
            last = (self._uncleanable_offset if following is None else following) - 1
            size += source.size
            index_bytes += source.index_bytes
            time_index_bytes += source.time_index_bytes
            if (
                groups
                and size <= config.segment_bytes
                and max(index_bytes, time_index_bytes) <= config.segment_index_bytes
                and (source.size == 0 or last - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
            ):
                groups[-1].append(source)
                continue
            groups.append([source])
            size, index_bytes = source.size, source.index_bytes
            time_index_bytes = source.time_index_bytes
        return groups

    def _compact(self, group: list[Source], keep: Filter) -> None:
        base_offset = group[0].base_offset
        cleaned = Segment(
            self._fs,
            self.log.path,
            base_offset,
            self._config,
            self._files,
            created_ms=self._now_ms,
            sizes={},
            suffix=CLEANED_SUFFIX,
        )
        # Before anything is written, so that `discard` finds the files after an error.
        self._results.append((cleaned, [source.segment for source in group]))
        cleaned.create_files()
        keep.transactions.keep_aborted = cleaned.txn_index.append
        for source in group:
            self._copy(source, cleaned, keep)
        cleaned.finish()
        self._sync(cleaned)

    def _copy(self, source: Source, cleaned: Segment, keep: Filter) -> None:
        file = SegmentFile(self._fs, source.path, source.size, self._files)
        stats = self.stats
        for place, batch in walk_batches(file, 0, source.size):
            self._read(place)
            check_checksum(source.path, place, batch)
            stats.batches_read += 1
            stats.bytes_read += place.size
            last_offset = place.last_offset
            kept: Kept | None = None
            if place.magic == 2:
                kept = keep.apply(read_header(batch), batch)
            else:
                old = filter_old(batch, self._map, cleaned.base_offset)
                if old is not None:
                    content, last_offset, max_timestamp = old
                    kept = content, max_timestamp
            if kept is not None:
                content, max_timestamp = kept
                cleaned.append(content, last_offset, max_timestamp)
                stats.bytes_written += len(content)
                self._throttle(len(content))
        file.close()

    def _sync(self, cleaned: Segment) -> None:
        for path in cleaned.paths():
            if path == cleaned.txn_index.path and not cleaned.txn_index.exists:
                continue
            self._sync_file(path)

    def _sync_file(self, path: str) -> None:
        descriptor = self._fs.open(path, READ_ONLY)
        try:
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)

    # --- on the thread that owns the log -----------------------------------------------------

    def commit(self, now_ms: int) -> bool:
        """Replace segments by the compacted ones. False, with nothing changed, if not possible.

        That is if `run` failed, or the log was truncated or closed meanwhile. Also False if the
        file system has no space for a name (`error`): then some groups may have been replaced.
        Skips groups of which retention has deleted a segment. Raises LogDirectoryOffline.
        """
        log = self.log
        if self.error is not None:
            return False
        if log.local.closed or log.truncations != self._truncations:
            self.discard()
            return False
        present = {id(segment) for segment in log.segments}
        try:
            while self._results:
                cleaned, replaced = self._results[0]
                if not all(id(segment) in present for segment in replaced):
                    _remove_files(log, cleaned)
                    _delete_snapshots(log, replaced)
                elif self._rename(cleaned):
                    self._swap(cleaned, replaced, now_ms)
                    self.error = finish_swap(log)
                else:
                    self.discard()
                    return False
                del self._results[0]
                if self.error is not None:
                    self.discard()
                    return False
        except OSError as error:
            raise log.log_directory.fail(error) from error
        return True

    def _rename(self, cleaned: Segment) -> bool:
        """Mark a segment as complete. False, without its files, if there is no space for that.

        Kafka takes the log directory offline then; but nothing was replaced, so nothing is lost.
        """
        cleaned.release()
        try:
            cleaned.change_suffix(SWAP_SUFFIX)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # None of them may stay: the next start would complete the swap, maybe of records that
            # were truncated until then.
            _remove_files(self.log, cleaned)
            self.error = error
            logger.warning("%s: Compaction is retried later: %s", self.log.name, error)
            return False
        return True

    def _swap(self, cleaned: Segment, replaced: list[Segment], now_ms: int) -> None:
        log = self.log
        self.has_replaced = True
        fresh = log.local.adopt_segment(cleaned)
        _delete_snapshots(log, replaced)
        log.local.retire_segments(replaced, now_ms + log.config.file_delete_delay_ms)
        log.segments.add(fresh)

    def sync(self) -> None:
        """Make the renames durable. May run in a worker thread."""
        try:
            self._fs.sync_directory(self.log.path)
        except FileNotFoundError:
            pass  # the directory was renamed: the log is being deleted or moved
        except OSError as error:
            self.log.log_directory.read_failed(error)  # the next flush syncs the directory, too
            self.sync_failed = True
            return
        self.is_synced = True

    def discard(self) -> None:
        """Delete the compacted segments."""
        for cleaned, _ in self._results:
            try:
                _remove_files(self.log, cleaned)
            except OSError as error:
                logger.warning("%s: Could not delete compacted segments: %s", self.log.name, error)
        self._results.clear()


def finish_swap(log: Log) -> OSError | None:
    """Give a segment that has replaced others its name. The error if there is no space for that.

    It keeps `.swap` then, a name under which the log reads and truncates it and the next start
    finds it; Kafka takes the log directory offline. No other compaction of the log may begin: the
    next start takes the `.swap` files of a log for those of one compaction, and removes them if it
    finds `.cleaned` files, too. Raises LogDirectoryOffline.
    """
    try:
        for segment in log.segments:
            if segment.suffix == SWAP_SUFFIX:
                segment.change_suffix("")
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise log.log_directory.fail(error) from error
        logger.warning("%s: Renaming a compacted segment is retried later: %s", log.name, error)
        return error
    return None


def _source(segment: Segment) -> Source:
    # The worker thread reads the files, without entries that are in memory only.
    segment.offset_index.write()
    segment.time_index.write()
    return Source(
        segment,
        segment.base_offset,
        segment.log.path,
        segment.size,
        segment.offset_index.size_in_bytes,
        segment.time_index.size_in_bytes,
    )


def _delete_snapshots(log: Log, segments: list[Segment]) -> None:
    """Delete the producer snapshots from the first of these segments to the end of the last one.

    This compaction may remove the marker of a transaction that is open in one of them, also if the
    marker is in a later segment. Loaded with the rest of the log, it would leave it open for ever.
    What is replayed from an earlier point has no such transaction: a marker is removed after the
    records. Raises OSError.
    """
    following = log.segments.after(segments[-1])
    end = None if following is None else following.base_offset
    log.producer_state.delete_snapshots(segments[0].base_offset, end)


def _remove_files(log: Log, segment: Segment) -> None:
    segment.release()
    for path in segment.paths():
        if log.log_directory.fs.exists(path):
            log.log_directory.fs.remove(path)
