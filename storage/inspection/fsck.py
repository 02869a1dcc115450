"""Checking the files of partition directories for consistency, without a broker.

Read-only. Works on directories of Kafka too, and on those of a running broker, where the last batch
may be incomplete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import read_records
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptFile, CorruptIndex
from ottla.storage.files.checkpoints import read_epoch_checkpoint, read_partition_metadata
from ottla.storage.files.fs import FileSystem, RealFileSystem, read_file
from ottla.storage.files.layout import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_of_file,
    parse_partition_directory,
    segment_file_name,
)
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import SET_ASIDE_SUFFIX
from ottla.storage.index.index_file import IndexFile
from ottla.storage.log.batch_scan import CorruptLog, Place, check_checksum, walk_batches
from ottla.storage.log.segment import Segment
from ottla.storage.producer.producer_snapshot import decode_snapshot
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES

Problem = dict[str, object]
# Snapshots are small: a larger file is not a snapshot.
_SMALL_FILE_BYTES_MAX = 256 << 20
# Limits the report of one directory.
_PROBLEMS_MAX = 1000


class PartitionCheck:
    """The check of one partition directory: counters and `problems`."""

    def __init__(self, path: str, fs: FileSystem | None = None, *, deep: bool = False) -> None:
        """`deep`: decompresses and decodes all records.

        Otherwise records are counted by the batch headers, and a compressed message of magic 0 or
        1 counts as one.
        """
        self.path = path
        self.problems: list[Problem] = []
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.log_start_offset: int | None = None
        self.log_end_offset: int | None = None
        #: Files of the log that are set aside; they are no part of it.
        self.set_aside = 0
        self._fs = fs if fs is not None else RealFileSystem()
        self._deep = deep
        self._epochs: list[tuple[int, int]] = []
        self._files = OpenFiles()

    def as_dict(self) -> dict[str, object]:
        return {
            "directory": self.path,
            "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "set_aside": self.set_aside,
            "problems": self.problems,
        }

    def _problem(self, name: str, reason: object, position: int | None = None) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            where = {} if position is None else {"position": position}
            self.problems.append({"file": name, **where, "problem": str(reason)})

    def run(self, *, indexes_only: bool = False) -> PartitionCheck:
        """Check everything, or with `indexes_only` the logs and their indexes. Returns itself."""
        names = self._fs.list_files(self.path)
        self.set_aside = sum(name.endswith(SET_ASIDE_SUFFIX) for name in names)
        previous_end = -1
        for segment in self._segments(names):
            places = self._check_log(segment, previous_end)
            if places:
                if self.log_start_offset is None:
                    self.log_start_offset = segment.base_offset
                previous_end = self.log_end_offset = places[-1].last_offset + 1
            elif self.log_end_offset is None:
                self.log_start_offset = self.log_end_offset = segment.base_offset
            self._check_offset_index(segment, places, names)
            self._check_time_index(segment, places, names)
            segment.release()
        if not indexes_only:
            self._check_small_files(names)
        return self

    def _segments(self, names: dict[str, int]) -> Iterator[Segment]:
        for name in sorted(names):
            offset = offset_of_file(name)
            if offset is None or not name.endswith(SEGMENT_SUFFIXES):
                continue
            if segment_file_name(offset, LOG_SUFFIX) not in names:
                self._problem(name, "there is no log file for it")
            elif name.endswith(LOG_SUFFIX):
                yield Segment(
                    self._fs,
                    self.path,
                    offset,
                    LogConfig(),
                    self._files,
                    created_ms=0,
                    sizes=names,
                )

    def _check_log(self, segment: Segment, previous_end: int) -> list[Place]:
        name = os.path.basename(segment.log.path)
        if segment.base_offset < previous_end:
            self._problem(name, f"overlaps the previous segment, which ends at {previous_end}")
        places: list[Place] = []
        expected = segment.base_offset
        try:
            for place, batch in walk_batches(segment.log, 0, segment.size):
                check_checksum(name, place, batch)
                if place.base_offset < expected:
                    self._problem(
                        name,
                        f"offset {place.base_offset} is below the expected {expected}",
                        place.position,
                    )
                expected = max(expected, place.last_offset + 1)
                self._check_records(name, place, batch)
                self._add_epoch(place)
                places.append(place)
                self.batches += 1
                self.bytes += place.size
        except CorruptLog as damage:
            self._problem(name, damage.reason, damage.position)
        return places

    def _check_records(self, name: str, place: Place, batch: memoryview) -> None:
        if not self._deep:
            self.records += read_header(batch).record_count if place.magic == 2 else 1
            return
        try:
            offsets = [
                record.offset
                for record in read_records(
                    batch, include_control=True, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES
                )
            ]
        except RecordsError as error:
            self._problem(name, error, place.position)
            return
        self.records += len(offsets)
        if place.magic == 2 and len(offsets) != read_header(batch).record_count:
            self._problem(
                name, f"found {len(offsets)} records, not as many as the header has", place.position
            )
        if offsets != sorted(set(offsets)):
            self._problem(name, "the offsets of the records are not ascending", place.position)
        elif offsets and not (
            offsets[-1] <= place.last_offset
            and (place.magic < 2 or place.base_offset <= offsets[0])
        ):
            self._problem(name, "records are outside of the offsets of the batch", place.position)

    def _add_epoch(self, place: Place) -> None:
        if place.magic < 2:
            self._epochs.clear()  # as the log does: it does not know them any more
        latest = self._epochs[-1][0] if self._epochs else -1
        if place.leader_epoch > latest:
            self._epochs.append((place.leader_epoch, place.base_offset))

    def _check_offset_index(
        self, segment: Segment, places: list[Place], names: dict[str, int]
    ) -> None:
        name = segment_file_name(segment.base_offset, INDEX_SUFFIX)
        if name not in names:
            self._problem(name, "the index is missing")
            return
        index = segment.offset_index
        try:
            index.check_length()
            self._check_longest(index, segment)
            entries = index.unchecked_entries(segment.size)
        except CorruptFile as damage:
            self._problem(name, damage.reason)
            return
        by_position = {place.position: place for place in places}
        previous = (segment.base_offset - 1, -1)
        for number, (offset, position) in enumerate(entries):
            place = by_position.get(position)
            if offset <= previous[0] or position <= previous[1]:
                self._problem(name, f"entry {number} ({offset}, {position}) is not ascending")
            if place is None:
                self._problem(name, f"entry {number}: no batch begins at position {position}")
            elif not place.base_offset <= offset:
                self._problem(
                    name,
                    f"entry {number}: the batch at position {position} begins with offset"
                    f" {place.base_offset}, after {offset}",
                )
            previous = (offset, position)

    @staticmethod
    def _check_longest(index: IndexFile, segment: Segment) -> None:
        if index.size_in_bytes > segment.size:
            raise CorruptIndex(index.path, f"{index.size_in_bytes} bytes, more than its log")

    def _check_time_index(
        self, segment: Segment, places: list[Place], names: dict[str, int]
    ) -> None:
        name = segment_file_name(segment.base_offset, TIME_INDEX_SUFFIX)
        if name not in names:
            self._problem(name, "the time index is missing")
            return
        index = segment.time_index
        try:
            index.check_length()
            self._check_longest(index, segment)
            entries = index.unchecked_entries()
        except CorruptFile as damage:
            self._problem(name, damage.reason)
            return
        previous = (-1, segment.base_offset)
        newest, at = -1, 0
        for number, (timestamp, offset) in enumerate(entries):
            if timestamp <= previous[0] or offset < previous[1]:
                self._problem(name, f"entry {number} ({timestamp}, {offset}) is not ascending")
            while at < len(places) and places[at].last_offset <= offset:
                newest = max(newest, places[at].max_timestamp)
                at += 1
            if newest > timestamp:
                self._problem(
                    name,
                    f"entry {number}: timestamp {newest} up to offset {offset} is above"
                    f" that of the entry, {timestamp}",
                )
            previous = (timestamp, offset)

    def _check_small_files(self, names: dict[str, int]) -> None:
        for name in sorted(names):
            path = f"{self.path}/{name}"
            try:
                if name.endswith(SNAPSHOT_SUFFIX):
                    decode_snapshot(path, read_file(self._fs, path, _SMALL_FILE_BYTES_MAX))
                elif name == PARTITION_METADATA:
                    read_partition_metadata(self._fs, path)
                elif name == LEADER_EPOCH_CHECKPOINT:
                    self._check_epochs(name, read_epoch_checkpoint(self._fs, path))
            except CorruptFile as damage:
                self._problem(name, damage.reason)
        for segment in self._segments(names):
            try:
                segment.txn_index.entries()
            except CorruptFile as damage:
                self._problem(os.path.basename(damage.path), damage.reason)

    def _check_epochs(self, name: str, entries: list[tuple[int, int]]) -> None:
        starts = dict(entries)
        if entries != sorted(entries) or sorted(starts.values()) != list(starts.values()):
            self._problem(name, "epochs or offsets are not ascending")
        for epoch, first_offset in self._epochs:
            known = starts.get(epoch)
            if known is None:
                self._problem(name, f"epoch {epoch} of offset {first_offset} is missing")
            elif known > first_offset:
                self._problem(
                    name, f"epoch {epoch} begins at {known}, but is in the log at {first_offset}"
                )


def partition_directories(path: str, fs: FileSystem | None = None) -> list[str]:
    """The partition directories at `path`, which is one itself or a log directory."""
    system = fs if fs is not None else RealFileSystem()
    if any(name.endswith((LOG_SUFFIX, SET_ASIDE_SUFFIX)) for name in system.list_files(path)):
        return [path]
    names = system.list_directories(path)
    return [f"{path}/{name}" for name in names if parse_partition_directory(name) is not None]
