"""One segment of a log: a `.log` file with its indexes.

Only the active segment of a log, the last one, is appended to. All methods run on the thread that
owns the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.protocol.steps import Steps
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptIndex, SegmentOffsetOverflow
from ottla.storage.files.fs import Buffer, FileSystem, clear_path
from ottla.storage.files.layout import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import NO_TIMESTAMP, TimeIndex
from ottla.storage.index.txn_index import TransactionIndex
from ottla.storage.log.batch_scan import CorruptLog, Place, find, walk
from ottla.storage.log.segment_file import SegmentFile
from ottla.storage.records.batch_content import newest_in_records

if TYPE_CHECKING:
    from ottla.storage.records.validation import AcceptedBatch

logger = logging.getLogger("ottla.storage")

T = TypeVar("T")

# Offsets in indexes, and offset deltas in a batch, are int32 and not negative.
MAX_RELATIVE_OFFSET = 0x7FFFFFFF
# Bytes of batches whose headers are read once, even if the time index disagrees; takes about 2 ms.
_DISTRUSTED_BYTES = 1 << 20
# Not read from the file yet. -1 is Kafka's "no timestamp".
_UNKNOWN = -2
# The last write was of several batches, or of one with an unknown base offset.
_SEVERAL = -1
# Above all offsets: nothing was written since the segment was opened or truncated.
_NO_OFFSET = 1 << 63


def _newest_of(places: Iterable[Place], found: tuple[int, int]) -> tuple[int, int]:
    """(newest timestamp, last offset of its batch) of these batches and what was found before."""
    newest, at = found
    for place in places:
        if place.max_timestamp > newest:
            newest, at = place.max_timestamp, place.last_offset
    return newest, at


class Truncation(NamedTuple):
    """A truncation that has been prepared, so that `run` needs neither descriptors nor reads.

    `next_offset` is the offset after the last batch that it leaves. `run` raises OSError; the
    segment must not be used then.
    """

    next_offset: int
    run: Callable[[], None]


class Segment:
    """The batches of a log from `base_offset` up to the next segment (Kafka: `LogSegment`)."""

    __slots__ = (
        "_before_last_write",
        "_fs",
        "_last_base_offset",
        "_last_write_position",
        "_last_written_offset",
        "_newest_offset",
        "_newest_timestamp",
        "_rolling_timestamp",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "index_entries_left",
        "index_interval_bytes",
        "log",
        "newest_is_from_index",
        "offset_index",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        config: LogConfig,
        files: OpenFiles,
        *,
        created_ms: int,
        sizes: Mapping[str, int],
        suffix: str = "",
    ) -> None:
        """`sizes` maps the names of the existing files of the directory to their sizes in bytes.

        Opens no file. Rolling by time counts from `created_ms` if the records have no timestamp.
        `suffix` is `.cleaned` while compaction writes the segment.
        """
        self._fs = fs
        self.base_offset = base_offset
        self.suffix = suffix
        self.created_ms = created_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.bytes_since_index_entry = 0
        empty = not sizes.get(segment_file_name(base_offset, LOG_SUFFIX) + suffix, 0)
        self._newest_timestamp = NO_TIMESTAMP if empty else _UNKNOWN
        self._newest_offset = base_offset
        #: Whether a time index of an earlier process is the only witness of the newest timestamp:
        #: if that file was cut short, there may be newer records in front of the last ones.
        self.newest_is_from_index = not empty
        self._rolling_timestamp = _UNKNOWN
        # Where the last write began, and the last offset before it: most reads are of its batches,
        # by consumers and followers that are up to date, and need no index. If it was one batch,
        # with a known base offset, they need not even read its header.
        self._last_write_position = 0
        self._last_base_offset = _SEVERAL
        self._before_last_write = _NO_OFFSET
        self._last_written_offset = base_offset - 1 if empty else _NO_OFFSET
        stem = segment_file_name(base_offset, "")
        path = f"{directory}/{stem}"
        index_bytes = config.segment_index_bytes
        name = LOG_SUFFIX + suffix
        self.log = SegmentFile(fs, path + name, sizes.get(stem + name, 0), files)
        name = INDEX_SUFFIX + suffix
        size = sizes.get(stem + name, 0)
        self.offset_index = OffsetIndex(fs, path + name, base_offset, size, index_bytes, files)
        name = TIME_INDEX_SUFFIX + suffix
        size = sizes.get(stem + name, 0)
        self.time_index = TimeIndex(fs, path + name, base_offset, size, index_bytes, files)
        self._update_entries_left()
        name = TXN_INDEX_SUFFIX + suffix
        size = sizes.get(stem + name, 0)
        self.txn_index = TransactionIndex(fs, path + name, base_offset, size, self.log.size)

    def __repr__(self) -> str:
        return f"Segment({self.log.path}, {self.log.size} bytes)"

    @property
    def size(self) -> int:
        """Bytes of records."""
        return self.log.size

    def create_files(self, preallocate_bytes: int = 0) -> None:
        """Create empty files, which exist even if nothing is ever written. Raises OSError."""
        self.log.create()
        if preallocate_bytes:
            self.log.preallocate(preallocate_bytes)
        self.offset_index.create()
        self.time_index.create()

    def _update_entries_left(self) -> None:
        # An entry of the offset index may come with one of the time index or without: the smaller
        # number is safe for both.
        self.index_entries_left = min(self.offset_index.entries_left, self.time_index.entries_left)

    # --- appending ---------------------------------------------------------------------------

    def append(
        self, batch: Buffer, last_offset: int, max_timestamp: int, base_offset: int = _SEVERAL
    ) -> None:
        """Write one batch at the end and index it. Raises OSError, with nothing changed.

        With `base_offset` of the batch, the next reads of it are quicker."""
        log = self.log
        position = log.size
        log.append(batch)
        try:
            self.index_batch(position, log.size - position, last_offset, max_timestamp)
        except BaseException:  # MemoryError, too: what is not undone has its offset given again
            self.undo_append(position, last_offset)
            raise
        self._last_write_position = position
        self._last_base_offset = base_offset
        self._before_last_write = self._last_written_offset
        self._last_written_offset = last_offset

    def append_many(
        self, buffer: Buffer, batches: Sequence[AcceptedBatch], last_offset: int
    ) -> None:
        """Write batches at the end, with one write, and index them. Raises as `append`."""
        log = self.log
        start = log.size
        log.append(buffer)
        try:
            for batch in batches:
                self.index_batch(
                    start + batch.position, batch.size, batch.last_offset, batch.max_timestamp
                )
        except BaseException:
            self.undo_append(start, batches[0].last_offset)
            raise
        self._last_write_position = start
        self._last_base_offset = batches[0].first_offset if len(batches) == 1 else _SEVERAL
        self._before_last_write = self._last_written_offset
        self._last_written_offset = last_offset

    def undo_append(self, position: int, last_offset: int) -> None:
        """Undo an append at `position`, whose first batch ends with `last_offset`.

        For an append that was written but could not be indexed. Its bytes stay in the file until
        `SegmentFile.remove_partial_write`, or until they are overwritten.
        """
        self.log.size = position
        self.offset_index.truncate_to(last_offset)
        self.time_index.truncate_to(last_offset)
        self.invalidate_cached()

    def index_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Update the newest timestamp and the indexes for a batch that has been written.

        As in Kafka, the first batch after `index.interval.bytes` gets an index entry.
        """
        if max_timestamp > self._newest_timestamp:
            if self._newest_timestamp == _UNKNOWN:
                self._read_newest_or_none()
            if max_timestamp > self._newest_timestamp:
                self._newest_timestamp = max_timestamp
                self._newest_offset = last_offset
        if position == 0:
            self._rolling_timestamp = max_timestamp
        since = self.bytes_since_index_entry
        if since > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._newest_timestamp, self._newest_offset)
            self.index_entries_left -= 1
            since = 0
        self.bytes_since_index_entry = since + size

    def _read_newest_or_none(self) -> None:
        """A damaged batch does not stop appends: the newest timestamp is one of those behind it."""
        try:
            self.newest()
        except CorruptLog as damage:
            logger.error("The newest timestamp of a segment is not known: %s", damage)
            self._newest_timestamp, self._newest_offset = NO_TIMESTAMP, self.base_offset

    def should_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, config: LogConfig,
        jitter_ms: int,
    ) -> bool:  # fmt: skip
        """Whether an append of `size` bytes requires a new segment: by size, time or full index.

        Time is that of the records if they have timestamps, otherwise the time since creation.
        """
        log_size = self.log.size
        if log_size + size > config.segment_bytes:
            return True
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if log_size == 0:
            return False
        first = self._rolling_timestamp
        if first == _UNKNOWN:
            first = self.rolling_timestamp()
        if first >= 0 and max_timestamp >= 0:
            waited_ms = max_timestamp - first
        else:
            waited_ms = now_ms - self.created_ms
        return waited_ms > config.max_segment_ms - jitter_ms or self.index_entries_left <= 0

    def rolling_timestamp(self) -> int:
        """The timestamp of the first batch, or -1. Rolling by time counts from it."""
        if self._rolling_timestamp == _UNKNOWN:
            try:
                first = next(walk(self.log, 0, self.log.size), None)
            except CorruptLog as damage:
                logger.error("The first timestamp of a segment is not known: %s", damage)
                first = None
            self._rolling_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp
        return self._rolling_timestamp

    # --- looking up --------------------------------------------------------------------------

    def modified_ms(self) -> int:
        """When its log file was written last."""
        return self._fs.modified_ms(self.log.path)

    def newest(self) -> tuple[int, int]:
        """(newest timestamp, last offset of its batch), or (-1, base offset)."""
        if self._newest_timestamp == _UNKNOWN:
            self._with_sound_indexes(lambda: self.read_newest(self.log.size))
        return self._newest_timestamp, self._newest_offset

    def read_newest(self, end: int) -> None:
        """Read the newest timestamp of the first `end` bytes. Raises CorruptLog, CorruptIndex."""
        newest, at = self.time_index.last()
        covered = 0
        if self.time_index.entries:
            with suppress(CorruptLog):  # then the log is damaged in front of that batch
                holder = self.find_batch_by_index(at)
                self._check_time(newest, at, holder)
                covered = 0 if holder is None else holder.position
        indexed = self.offset_index.last()[1]
        # The entries of both are written together: up to the last batch of the offset index there
        # is none that is newer. If the file of the time index was cut short, there may be.
        found = newest, at
        if covered < indexed <= covered + _DISTRUSTED_BYTES:
            with suppress(CorruptLog):  # a damaged batch in between may be below the log start
                found = _newest_of(walk(self.log, covered, indexed), found)
        found = _newest_of(self._last_batches(end), found)
        self._newest_timestamp, self._newest_offset = found

    def newest_of_headers(self) -> Steps[None]:
        """Read the headers of all batches, so that the newest timestamp is that of the log.

        May pause after each batch; must not go on when the segment has been removed or truncated.
        In front of a damaged batch the headers count, behind it the time index. Raises OSError.
        """
        try:
            found = self.newest()
        except CorruptLog:
            found = self.time_index.last()
        with suppress(CorruptLog):
            for place in walk(self.log, 0, self.log.size):
                found = _newest_of((place,), found)
                yield
        if found[0] > self._newest_timestamp:  # else a newer one was appended meanwhile
            self._newest_timestamp, self._newest_offset = found
        self.newest_is_from_index = False

    def largest_timestamp(self) -> int:
        """The newest timestamp, or the modification time of the file: for retention by time."""
        newest = self.newest()[0]
        return newest if newest >= 0 else self._fs.modified_ms(self.log.path)

    def find_last_batch(self, offset: int) -> tuple[int, int] | None:
        """(position, base offset) of the last batch, if it is known to be what `find_batch` finds
        for `offset`. Reads nothing."""
        base_offset = self._last_base_offset
        if base_offset >= 0 and self._before_last_write < offset <= self._last_written_offset:
            return self._last_write_position, base_offset
        return None

    def find_batch(self, offset: int) -> Place | None:
        """The first batch that ends at or after `offset`, None when there is none.

        Rebuilds the indexes when they turn out to be corrupt. Raises CorruptLog when the log itself
        is corrupt at that position.
        """
        try:
            return self.find_batch_by_index(offset)
        except CorruptIndex as damage:
            self.repair_indexes(damage)
            return self.find_batch_by_index(offset)

    def _with_sound_indexes(self, look_up: Callable[[], T]) -> T:
        try:
            return look_up()
        except CorruptIndex as damage:
            self.repair_indexes(damage)
            return look_up()

    def find_batch_by_index(self, offset: int) -> Place | None:
        """As `find_batch`, with the indexes as they are. Raises CorruptIndex, CorruptLog.

        CorruptIndex also if a batch to which the index points is damaged in the log.
        """
        if offset > self._before_last_write:
            return find(self.log, self._last_write_position, self.log.size, offset)
        indexed, position = self.offset_index.lookup(offset)
        log = self.log
        end = log.size
        if position == 0:
            return find(log, 0, end, offset)
        place = self._indexed(indexed, position)
        if place.last_offset >= offset:
            return place
        return find(log, place.position + place.size, end, offset)

    def _indexed(self, offset: int, position: int) -> Place:
        """The batch that has the offset of an index entry, which is at or behind its position.

        Kafka has one entry for several batches that it appended at once: the last offset of the
        last one, and the position of the first one. Raises CorruptIndex if it is not there.
        """
        path, end = self.offset_index.path, self.log.size
        if not 0 <= position < end:
            raise CorruptIndex(path, f"offset {offset} has position {position} of {end} bytes")
        try:
            place = find(self.log, position, end, offset)
            first = place
            if place is not None and place.position != position:
                first = find(self.log, position, end, -1)
        except CorruptLog as damage:
            raise CorruptIndex(path, f"offset {offset}: {damage}") from damage
        if (
            place is None
            or first is None
            or not self.base_offset <= place.base_offset <= offset
            # In the middle of a batch there is often what looks like a message of an old format.
            or first.magic != place.magic
            or (place.magic < 2 and place.last_offset != offset)
        ):
            raise CorruptIndex(path, f"offset {offset} is not in a batch at position {position}")
        return place

    def _last_batches(self, end: int) -> Iterator[Place]:
        """The batches from the last indexed one on. Raises CorruptIndex before the first of them,
        CorruptLog."""
        offset, position = self.offset_index.last()
        if position:
            place = self._indexed(offset, position)
            yield place
            position = place.position + place.size
        yield from walk(self.log, position, end)

    def indexed_boundary(self, limit: int) -> tuple[int, Place | None]:
        """The position of the last index entry at or below `limit` bytes, or 0. A batch begins
        there: returned as well, if its header was read."""
        return self._with_sound_indexes(lambda: self._indexed_boundary(limit))

    def _indexed_boundary(self, limit: int) -> tuple[int, Place | None]:
        offset, position = self.offset_index.floor_by_position(limit)
        if not position:
            return 0, None
        place = self._indexed(offset, position)
        return position, place if place.position == position else None

    def boundary(self, first: Place, limit: int) -> int:
        """The last position at or below `limit` where a batch begins, searched from `first` on.

        Or that of a damaged batch before it: what is in front of it is served.
        """
        position, place = self.indexed_boundary(limit)
        if position <= first.position:
            position, place = first.position, first
        while True:
            try:
                place = place or find(self.log, position, self.log.size, -1)
            except CorruptLog as damage:
                if position > first.position:
                    logger.error("Reading up to a damaged batch: %s", damage)
                    return position
                raise
            if place is None or position + place.size > limit:
                return position
            position += place.size
            place = None

    def position_of(self, offset: int) -> int:
        """The position of the first batch that ends at or after `offset`, or the file size."""
        place = self.find_batch(offset)
        return self.log.size if place is None else place.position

    def next_offset(self) -> int:
        """The offset after the last batch. Raises CorruptLog."""
        return self._with_sound_indexes(self._next_offset)

    def _next_offset(self) -> int:
        last = self.base_offset - 1
        for place in self._last_batches(self.log.size):
            if place.base_offset <= last:
                raise CorruptLog(
                    self.log.path,
                    place.position,
                    f"offset {place.base_offset} is below the expected {last + 1}",
                )
            last = place.last_offset
        return last + 1

    def _check_time(self, timestamp: int, offset: int, place: Place | None) -> None:
        """Raise CorruptIndex if an entry of the time index does not match its batch, `place`.

        An entry that is too old lets retention delete the segment too early. The header of a batch
        may have an older timestamp than its records, which the index has.
        """
        if place is not None and place.base_offset <= offset <= place.last_offset:
            if place.max_timestamp == timestamp:
                return
            if place.max_timestamp < timestamp and place.magic == 2:
                newest = newest_in_records(self.log.read(place.position, place.size))
                if newest is None or newest == timestamp:
                    return
        raise CorruptIndex(
            self.time_index.path,
            f"timestamp {timestamp} is not that of the batch with offset {offset}",
        )

    def find_timestamp(self, timestamp: int, from_offset: int) -> Place | None:
        """The first batch that ends at or after `from_offset` and has at least this timestamp."""
        return self._with_sound_indexes(lambda: self._find_timestamp(timestamp, from_offset))

    def _find_timestamp(self, timestamp: int, from_offset: int) -> Place | None:
        older, indexed = self.time_index.lookup(timestamp)
        start = self.find_batch_by_index(max(indexed, from_offset))
        if older >= 0 and indexed >= from_offset:
            self._check_time(older, indexed, start)
        if start is None:
            return None
        for place in walk(self.log, start.position, self.log.size):
            if place.max_timestamp >= timestamp and place.last_offset >= from_offset:
                return place
        return None

    # --- changing ----------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Remove the batches that end at or after `offset`. Returns the bytes removed."""
        size = self.log.size
        self.truncation(offset).run()
        return size - self.log.size

    def truncation(self, offset: int) -> Truncation:
        """Prepare the removal of the batches that end at or after `offset`. Changes nothing yet.

        Raises OSError, CorruptLog.
        """
        place = self.find_batch(offset)
        if place is None:
            return Truncation(self.next_offset(), lambda: None)
        file = self.log.file()
        position = place.position
        last = self.base_offset - 1
        try:
            for before in walk(self.log, self.indexed_boundary(position - 1)[0], position):
                last = before.last_offset
        except CorruptLog as damage:
            logger.warning("Truncating behind a damaged batch: %s", damage)
            last = min(offset, place.base_offset) - 1
        steps = self._with_sound_indexes(
            lambda: [index.truncation(offset) for index in self._indexes()]
        )

        def run() -> None:
            for step in steps:
                step()
            self.log.truncate(position, file)
            self.invalidate_cached()

        return Truncation(last + 1, run)

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        return self.offset_index, self.time_index, self.txn_index

    def invalidate_cached(self) -> None:
        """The log or its indexes were truncated: reads timestamps and sizes again when needed."""
        self.bytes_since_index_entry = 0
        self._newest_timestamp = self._rolling_timestamp = _UNKNOWN
        self.newest_is_from_index = True
        self._before_last_write = self._last_written_offset = _NO_OFFSET
        self._update_entries_left()

    def reset_indexes(self) -> None:
        """Empty offset and time index. `index_batch` fills them again."""
        self.offset_index.reset()
        self.time_index.reset()
        self.bytes_since_index_entry = 0
        self._newest_timestamp, self._newest_offset = NO_TIMESTAMP, self.base_offset
        self.newest_is_from_index = False
        self._rolling_timestamp = _UNKNOWN
        self._update_entries_left()

    def check_indexes(self) -> None:
        """Check all entries of the indexes, and rebuild what is damaged: for a copy of the files.

        Raises OSError, and CorruptIndex if one cannot be rebuilt.
        """
        self._with_sound_indexes(self._check_indexes)
        self.txn_index.entries()

    def _check_indexes(self) -> None:
        self.offset_index.check_all()
        self.time_index.check_all()
        with suppress(CorruptLog):
            self.read_newest(self.log.size)

    def truncate_indexes(self, offset: int, position: int) -> None:
        """Remove what the indexes have of batches from `position` on, where `offset` begins, and
        what cannot be right. Those batches may be damaged: they are not read. A damaged one in
        front of them is left alone, as where nothing is recovered. Raises OSError."""
        self.txn_index.truncate_to(offset)
        self._keep_indexes_below(offset)
        try:
            with suppress(CorruptLog):
                self.read_newest(position)
        except CorruptIndex as damage:
            self.repair_indexes(damage)
            self._keep_indexes_below(offset)
            with suppress(CorruptLog):
                self.read_newest(position)

    def _keep_indexes_below(self, offset: int) -> None:
        self.offset_index.keep_valid(offset)
        self.time_index.keep_valid(offset)
        self.invalidate_cached()

    def rebuild_indexes(self) -> None:
        """Rebuild offset and time index from the batch headers. Raises CorruptLog."""
        self.reset_indexes()
        try:
            self._index_from(0)
        except CorruptLog:
            self.invalidate_cached()  # the newest timestamp so far is not that of the whole log
            raise
        self.finish()

    def _index_from(self, position: int) -> None:
        for place in self._ascending(position):
            self.check_offset(place.last_offset)
            self.index_batch(place.position, place.size, place.last_offset, place.max_timestamp)

    def _ascending(self, position: int) -> Iterator[Place]:
        """The batches from `position` on. Raises CorruptLog at one whose offset, which no checksum
        covers, is not above those before it, or leaves a gap and is above those behind it."""
        before: Place | None = None
        held: Place | None = None
        for place in walk(self.log, position, self.log.size):
            if held is not None:
                if place.base_offset <= held.last_offset:
                    expected = self.base_offset if before is None else before.last_offset + 1
                    wrong = place if held.base_offset == expected else held
                    if wrong is place:
                        yield held
                    raise CorruptLog(
                        self.log.path, wrong.position, f"unexpected offset {wrong.base_offset}"
                    )
                yield held
            before, held = held, place
        if held is not None:
            yield held

    def repair_indexes(self, damage: CorruptIndex) -> None:
        """Rebuild both indexes as far as the batches can be read, because of `damage` in one.

        Behind a damaged batch of the log it continues where the index says that a batch begins, if
        that is true: what is there is found as before. Raises OSError.
        """
        logger.warning("Rebuilding the indexes of %s: %s", self.log.path, damage)
        try:
            behind = self.offset_index.unchecked_entries(self.log.size)
        except CorruptIndex:  # the file is shorter than it was
            behind = []
        self.reset_indexes()
        position = 0
        while True:
            try:
                self._index_from(position)
                break
            except (CorruptLog, SegmentOffsetOverflow) as lost:
                logger.error("A batch in %s is corrupt: %s", self.log.path, lost)
            position, behind = self._next_sound(behind)
            if not position:
                break
        self.finish()

    def _next_sound(self, behind: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
        """The first of these index entries that is true and behind all that is indexed, and those
        after it. Its position is 0 if there is none."""
        last_offset, last_position = self.offset_index.last()
        for number, (offset, position) in enumerate(behind):
            if position > last_position and offset > last_offset:
                with suppress(CorruptIndex):
                    if self._indexed(offset, position).base_offset > last_offset:
                        return position, behind[number + 1 :]
        return 0, []

    def check_offset(self, offset: int) -> None:
        """Raise SegmentOffsetOverflow when the indexes cannot represent the offset."""
        if not 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            raise SegmentOffsetOverflow(self.log.path, self.base_offset, offset)

    def finish(self) -> None:
        """Complete the files before the segment becomes inactive or is closed. Raises OSError.

        Appends the newest timestamp to the time index, writes pending index entries, removes
        preallocated space. That timestamp may be unknown because a batch is damaged: it is logged.
        """
        if self.log.size:
            self._read_newest_or_none()
            if self._newest_timestamp != NO_TIMESTAMP:
                self.time_index.maybe_append(self._newest_timestamp, self._newest_offset)
        self.offset_index.write()
        self.time_index.write()
        self.log.trim()

    def change_suffix(self, suffix: str) -> None:
        """Rename all files, for example to `.deleted`. Slices stay readable.

        Raises OSError; a repeated call renames the others.
        """
        for part in self._parts():
            path = part.path.removesuffix(suffix).removesuffix(self.suffix) + suffix
            if path != part.path and (part is not self.txn_index or self.txn_index.exists):
                try:
                    self._fs.replace(part.path, path)
                except FileNotFoundError:
                    logger.warning("%s does not exist and cannot be renamed", part.path)
                except (IsADirectoryError, NotADirectoryError):
                    clear_path(self._fs, path)
                    self._fs.replace(part.path, path)
            part.path = path
        self.suffix = suffix

    def move_to(self, directory: str) -> None:
        """The directory was renamed to `directory`."""
        for part in self._parts():
            part.path = f"{directory}/{os.path.basename(part.path)}"

    def _parts(self) -> tuple[SegmentFile, OffsetIndex, TimeIndex, TransactionIndex]:
        return self.log, self.offset_index, self.time_index, self.txn_index

    def paths(self) -> list[str]:
        """The paths of the files of the segment."""
        return [part.path for part in self._parts()]

    def close(self) -> None:
        """Finish the segment and close its descriptors."""
        self.finish()
        self.release()

    def release(self) -> None:
        """Close descriptors without writing anything."""
        self.offset_index.discard()
        self.time_index.discard()
        self.log.close()
