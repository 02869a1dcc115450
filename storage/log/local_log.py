"""The segments of one log on disk: its directory, the segments in order, and the active one.

`LocalLog` is Kafka's: it knows files and segments, but neither record validation nor leader epochs.
It rolls, retires and replaces segments.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptIndex, LogClosed, StorageError
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import READ_ONLY
from ottla.storage.files.layout import DELETED_SUFFIX, LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from ottla.storage.files.log_directory import NO_SPACE, LogDirectory, is_exhausted
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import Reason
from ottla.storage.index.txn_index import AbortedTransaction, Rebuild
from ottla.storage.log.parts_aside import set_segment_aside
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.producer.producer_state import ProducerState

logger = logging.getLogger("ottla.storage")

_NOT_KNOWN = -1
# A truncation has no more files open at the same time than this.
_SPARE_DESCRIPTORS = 4


class LocalLog:
    """The segments of a log, its settings, and the segment that is appended to: `active`.

    `roll_bytes`, `roll_offset` and `roll_timestamp` are what the active segment takes without a
    call of `must_roll`. `closed` is set by `release` and never cleared.
    """

    __slots__ = (
        "_deletions",
        "_producers",
        "active",
        "closed",
        "config",
        "directory",
        "roll_bytes",
        "roll_jitter_ms",
        "roll_offset",
        "roll_timestamp",
        "segments",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        config: LogConfig,
        segments: SegmentList,
        producers: ProducerState,
        deletions: Deletions,
    ) -> None:
        """`segments` has one segment at least; the last one becomes the active segment."""
        self.directory = directory
        self.config = config
        self.segments = segments
        self.active = segments.active
        self.closed = False
        self._producers = producers
        self._deletions = deletions
        self._set_roll_limits()

    @property
    def size_in_bytes(self) -> int:
        """Bytes of records in all segments."""
        return sum(segment.size for segment in self.segments)

    def update_config(self, config: LogConfig) -> None:
        """Use new settings from the next append on."""
        self.config = config
        self._set_roll_limits()

    # --- rolling -----------------------------------------------------------------------------

    def _set_roll_limits(self) -> None:
        # The jitter is random per segment but the same again after a restart: segments of
        # different logs that began together do not roll together.
        bound = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        self.roll_jitter_ms = 0
        if bound > 0:
            from random import Random

            seed = f"{self.directory.name}/{self.active.base_offset}"
            self.roll_jitter_ms = Random(seed).randrange(bound + 1)
        self.roll_bytes = self.config.segment_bytes
        self.roll_offset = self.active.base_offset + MAX_RELATIVE_OFFSET
        self.roll_timestamp = _NOT_KNOWN  # until the first batch is there

    def must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Whether an append of `size` bytes needs a new segment: size, time or full index."""
        segment = self.active
        config, jitter_ms = self.config, self.roll_jitter_ms
        if segment.should_roll(size, max_timestamp, last_offset, now_ms, config, jitter_ms):
            return True
        if segment.size and segment.rolling_timestamp() >= 0:
            self.roll_timestamp = segment.rolling_timestamp() + config.max_segment_ms - jitter_ms
        return False

    def roll(self, now_ms: int, base_offset: int) -> Segment:
        """Start a new active segment at `base_offset` and return it. Does not flush the old one.

        Writes a producer snapshot at the base offset. An empty active segment with the same base
        offset is kept. Raises DiskFull or LogDirectoryOffline.
        """
        old = self.active
        if old.base_offset == base_offset and old.size == 0:
            # Kafka deletes and creates the files. What matters is that the indexes are empty and
            # that the age of the segment counts from now.
            old.created_ms = now_ms
            return old
        try:
            old.finish()
            self._producers.end_offset = base_offset
            self._producers.take_snapshot()
            segment = self.create_segment(base_offset, now_ms)
        except OSError as error:
            raise self.write_failed(error) from error
        self.segments.add(segment)
        self.use_as_active(segment)
        logger.debug("%s: Rolled new log segment at offset %d", self.directory.name, base_offset)
        return segment

    def create_segment(self, base_offset: int, created_ms: int) -> Segment:
        """Create the files of a segment that is not in `segments` yet.

        Raises OSError, with none of the files left: appends may continue in the active segment,
        and a file of the new one would hide their records at the next start.
        """
        config = self.config
        self.directory.changes += 1
        segment = self.directory.segment(base_offset, config, created_ms)
        try:
            segment.create_files(config.segment_bytes if config.preallocate else 0)
        except OSError:
            self.remove_files(segment)
            raise
        return segment

    def remove_files(self, segment: Segment) -> None:
        """Remove the files of a segment that is not in `segments`."""
        segment.release()
        try:
            for path in segment.paths():
                if self.directory.fs.exists(path):
                    self.directory.fs.remove(path)
        except OSError as error:
            self.directory.log_directory.fail(error)

    def use_as_active(self, segment: Segment) -> None:
        """Append go to `segment`, which is in `segments`, from now on."""
        self.active = segment
        self._set_roll_limits()

    # --- failures ----------------------------------------------------------------------------

    def check_writable(self, *, even_if_full: bool = False) -> None:
        """Raise LogClosed, LogDirectoryOffline or DiskFull when nothing can be appended.

        `even_if_full` ignores `min_free_bytes`: the reserve is for coordinators, so that consumers
        can commit and transactions can end.
        """
        if self.closed:
            raise LogClosed(f"{self.directory.name} is closed")
        if even_if_full:
            self.directory.log_directory.check_online()
        else:
            self.directory.log_directory.check_writable()

    def check_descriptors(self) -> None:
        """Open a few descriptors and close them. Raises OSError when there are too few.

        For operations that open one file after the other and cannot be undone half-way.
        """
        fs, path = self.directory.fs, self.active.log.path
        opened: list[int] = []
        try:
            for _ in range(_SPARE_DESCRIPTORS):
                opened.append(fs.open(path, READ_ONLY))
        finally:
            for descriptor in opened:
                fs.close(descriptor)

    def write_failed(self, error: OSError) -> StorageError:
        """Remove a partial write from the active segment. Returns the exception to raise."""
        self.roll_timestamp = _NOT_KNOWN  # the first batch may be gone
        if error.errno in NO_SPACE:
            try:
                self.active.log.remove_partial_write()
            except OSError as second:
                if is_exhausted(second):
                    # Not needed: the next append overwrites it, `finish` cuts it off, and recovery
                    # discards it.
                    return self.directory.log_directory.write_failed(error)
                return self.directory.log_directory.fail(second)
        return self.directory.log_directory.write_failed(error)

    # --- removing and replacing --------------------------------------------------------------

    def retire_segments(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Remove segments from the log. Renames their files to `.deleted`, deletes them later.

        Deletes them at once if there is no space for the longer names: a full disk takes no log
        directory offline, and what is being read now stays readable. The producer snapshots at
        their base offsets are retired too. Raises OSError.
        """
        self.directory.changes += 1
        for segment in segments:
            self.segments.remove(segment)
            segment.release()
            self._retire_files(segment, due_ms)
            self._retire_snapshot(segment.base_offset, due_ms)

    def _retire_snapshot(self, base_offset: int, due_ms: int) -> None:
        try:
            snapshot = self._producers.retire_snapshot(base_offset)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.directory.fs.remove(self._producers.snapshot_path(base_offset))
            return
        if snapshot is not None:
            self._deletions.add(snapshot, due_ms)

    def set_segments_aside(self, segments: Sequence[Segment], reason: Reason, detail: str) -> None:
        """Remove segments from the log, and keep their records in files that are set aside.

        Durable after the next flush: a power failure brings them back. Raises OSError.
        """
        if not segments:
            return
        self.directory.changes += 1
        names = self.directory.fs.list_files(self.directory.path)
        for segment in segments:
            self.segments.remove(segment)
            set_segment_aside(self.directory, segment, reason, detail, self._remove_later, names)
            self._retire_snapshot(segment.base_offset, due_ms=0)

    def _remove_later(self, path: str) -> None:
        """A large file: not in a turn of the event loop. Raises OSError."""
        try:
            self.directory.fs.replace(path, path + DELETED_SUFFIX)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.directory.fs.remove(path)
        else:
            self._deletions.add(path + DELETED_SUFFIX, 0)

    def _retire_files(self, segment: Segment, due_ms: int) -> None:
        try:
            segment.change_suffix(DELETED_SUFFIX)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            for path in segment.paths():  # some of them may be renamed
                if self.directory.fs.exists(path):
                    self.directory.fs.remove(path)
            return
        for path in segment.paths():
            self._deletions.add(path, due_ms)

    def adopt_segment(self, segment: Segment) -> Segment:
        """A closed segment that compaction wrote, as a segment of this log. Its files stay."""
        lengths = (
            segment.size,
            segment.offset_index.size_in_bytes,
            segment.time_index.size_in_bytes,
            segment.txn_index.size_in_bytes,
        )
        names = (os.path.basename(path) for path in segment.paths())
        sizes = dict(zip(names, lengths, strict=True))
        return self.directory.segment(
            segment.base_offset, self.config, segment.created_ms, sizes, segment.suffix
        )

    # --- the directory -----------------------------------------------------------------------

    def release(self) -> None:
        """Close descriptors without writing anything. Slices stay readable."""
        self.closed = True
        for segment in self.segments:
            segment.release()

    def move_to(self, path: str) -> None:
        """The directory has been renamed to `path`."""
        self._deletions.rename_under(self.directory.path, path)
        self.directory.path = path
        self.directory.changes += 1
        for segment in self.segments:
            segment.move_to(path)
        self._producers.directory = path


class SegmentList:
    """Segments sorted by base offset. The last one is the active one."""

    __slots__ = ("_bases", "_segments")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over a copy: the list may change during the iteration."""
        return iter(tuple(self._segments))

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def base_offsets(self) -> list[int]:
        return list(self._bases)

    def add(self, segment: Segment) -> None:
        """Insert a segment. Raises ValueError when there is one with the same base offset."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            raise ValueError(
                f"a segment with base offset {segment.base_offset} is in the list already"
            )
        self._bases.insert(index, segment.base_offset)
        self._segments.insert(index, segment)

    def remove(self, segment: Segment) -> None:
        index = bisect_left(self._bases, segment.base_offset)
        if index == len(self._bases) or self._segments[index] is not segment:
            raise ValueError(f"{segment!r} is not in the list")
        del self._bases[index]
        del self._segments[index]

    def clear(self) -> list[Segment]:
        """Remove and return all segments."""
        removed = self._segments
        self._bases, self._segments = [], []
        return removed

    def floor(self, offset: int) -> Segment | None:
        """The last segment whose base offset is at or below `offset`, None if there is none."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index] if index >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The next segment, None for the last one."""
        index = bisect_right(self._bases, segment.base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Every segment that may contain `offset` or a later one."""
        index = max(0, bisect_right(self._bases, offset) - 1)
        return self._segments[index:]

    def between(self, start: int, end: int) -> list[Segment]:
        """Every segment that may contain an offset in [start, end)."""
        if start >= end:
            return []
        low = max(0, bisect_right(self._bases, start) - 1)
        return self._segments[low : bisect_left(self._bases, end)]


class PartitionDirectory:
    """Where the files of one log are. `path` changes when the directory is renamed.

    `name` is `topic-partition`, also while the directory has another name (`-future`, `-delete`).
    `changes` counts those of its entries that a flush makes durable: segments that were created or
    removed, `partition.metadata`, a rename of the directory.
    """

    __slots__ = (
        "_files",
        "changes",
        "fs",
        "log_directory",
        "name",
        "partition",
        "path",
        "rebuild_aborted",
        "synced_changes",
        "topic",
    )

    def __init__(
        self, log_directory: LogDirectory, path: str, topic: str, partition: int, files: OpenFiles
    ) -> None:
        self.log_directory = log_directory
        self.fs = log_directory.fs
        self.path = path
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self._files = files
        #: Repairs the transaction indexes of its segments; None while the log is being opened.
        self.rebuild_aborted: Rebuild | None = None
        # An earlier process may not have synced it.
        self.changes = 1
        self.synced_changes = 0

    def __repr__(self) -> str:
        return f"PartitionDirectory({self.path})"

    @property
    def metadata_path(self) -> str:
        """The path of `partition.metadata`."""
        return f"{self.path}/{PARTITION_METADATA}"

    @property
    def leader_epoch_path(self) -> str:
        """The path of `leader-epoch-checkpoint`."""
        return f"{self.path}/{LEADER_EPOCH_CHECKPOINT}"

    def segment(
        self,
        base_offset: int,
        config: LogConfig,
        created_ms: int,
        sizes: Mapping[str, int] | None = None,
        suffix: str = "",
    ) -> Segment:
        """A segment in this directory; `sizes` as in `Segment`. Creates and opens no file."""
        segment = Segment(
            self.fs,
            self.path,
            base_offset,
            config,
            self._files,
            created_ms=created_ms,
            sizes=sizes if sizes is not None else {},
            suffix=suffix,
        )
        segment.txn_index.rebuild = self._rebuild
        return segment

    def _rebuild(self, base_offset: int, damage: CorruptIndex) -> list[AbortedTransaction]:
        if self.rebuild_aborted is None:
            raise damage
        return self.rebuild_aborted(base_offset, damage)
