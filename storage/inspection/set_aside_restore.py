"""Taking back or discarding what was set aside (`storage/files/set_aside.py`), without a broker.

The caller holds the locks of the log directories. Whatever is interrupted between two calls of the
file system leaves what was there before, or the result, or what a second run completes: offsets in
checkpoints change before names, and a name changes before what it makes needless is removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from ottla.protocol.records.batch import read_header
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptFile, CorruptIndex, StorageError
from ottla.storage.files.checkpoints import (
    Offsets,
    read_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    write_epoch_checkpoint,
    write_offset_checkpoint,
)
from ottla.storage.files.fs import READ_ONLY, FileSystem, replace_file
from ottla.storage.files.layout import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED_SUFFIX,
    CLEANER_CHECKPOINT,
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    UniqueName,
    offset_of_file,
    parse_partition_directory,
    partition_directory_name,
    segment_file_name,
    unique_directory_name,
)
from ottla.storage.files.open_files import OpenFile, OpenFiles
from ottla.storage.files.set_aside import (
    NOTE_FILE,
    SET_ASIDE_SUFFIX,
    Note,
    Reason,
    SetAside,
    of_directory,
    of_files,
    original_name,
    write_note,
)
from ottla.storage.log.batch_scan import CorruptLog, check_checksum, walk_batches
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.log.segment_file import PinnedFile

logger = logging.getLogger("ottla.storage")

# The files of a log directory: other directories have none of these.
_OF_LOG_DIRECTORY = (META_PROPERTIES, LOCK_FILE, RECOVERY_POINT_CHECKPOINT)
_CHECKPOINTS = (
    *(RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT),
    *(HIGH_WATERMARK_CHECKPOINT, CLEANER_CHECKPOINT),
)
# Other log directories may have the current log of its partition.
_ABOUT_OTHER_DIRECTORIES = (Reason.SECOND_COPY, Reason.INCOMPLETE_MOVE)
# No index of aborted transactions is that short.
_DAMAGED_INDEX = b"\0"
# A file name may have 255 bytes; a longer one was cut.
_NAME_LENGTH_MAX = 255


class Refused(StorageError):
    """An item stays as it is: the reason, and what to do instead."""


class Content(NamedTuple):
    """The batches of a `.log` file. `next_offset` is that after the last one."""

    base_offset: int
    #: Of the first batch; None without one.
    first_offset: int | None
    next_offset: int
    size: int
    #: (leader epoch, offset of its first batch here), as they come.
    epochs: tuple[tuple[int, int], ...]
    is_transactional: bool
    #: Why the file is not valid up to its end, None if it is.
    damage: str | None


class LogSummary(NamedTuple):
    """A whole log: `first_offset` is its first base offset; None for both without a segment."""

    first_offset: int | None
    next_offset: int | None
    size: int
    topic_id: bytes | None

    def __str__(self) -> str:
        if self.first_offset is None:
            return "no records"
        return f"offsets {self.first_offset} to {self.next_offset}, {self.size} bytes"


class _Extent(NamedTuple):
    """The offsets [base, end) of a segment, and its bytes."""

    base: int
    end: int
    size: int


# --- reading ----------------------------------------------------------------------------------


def find_set_aside(fs: FileSystem, roots: Sequence[str]) -> list[SetAside]:
    """All items of the log directories. Read-only; a broker may run.

    A future log without a current log in `roots` is one, too. A log that this user may not read is
    passed over with a warning. Raises OSError.
    """
    away: list[str] = []  # on disks that are not mounted
    parsed = [
        (root, name, found)
        for root in dict.fromkeys(roots)
        for name in fs.list_directories(root, away)
        if (found := parse_partition_directory(name)) is not None
    ]
    names = [*(name for _, name, _ in parsed), *away]
    current = {
        found[:2] for found in map(parse_partition_directory, names) if found and not found[2]
    }
    items: list[SetAside] = []
    for root, name, (topic, partition, suffix) in parsed:
        path = f"{root}/{name}"
        try:
            if suffix == STRAY_DIRECTORY_SUFFIX:
                items += filter(None, [of_directory(fs, path)])
            elif suffix == FUTURE_DIRECTORY_SUFFIX and (topic, partition) not in current:
                items.append(_future(path, topic, partition))
            elif suffix != DELETE_DIRECTORY_SUFFIX:
                items += of_files(fs.list_files(path), path, topic, partition)
        except FileNotFoundError:
            continue  # a broker has removed it meanwhile
        except PermissionError as error:
            logger.warning("Cannot look into %s: %s", path, error.strerror)
    return items


def _future(path: str, topic: str, partition: int) -> SetAside:
    detail = "a move between log directories was interrupted; no current log was found"
    return SetAside(
        path,
        topic,
        partition,
        Reason.INCOMPLETE_MOVE,
        detail,
        needs_attention=True,
        set_aside_ms=-1,
        base_offset=None,
    )


def item_at(fs: FileSystem, path: str) -> SetAside:
    """The item with this absolute path. Raises Refused if it is not one, OSError."""
    parent, _, name = path.rpartition("/")
    if name.endswith(SET_ASIDE_SUFFIX):
        parsed = parse_partition_directory(parent.rpartition("/")[2])
        if parsed is not None and fs.exists(parent):
            root = parent.rpartition("/")[0]
            if is_log_directory(fs, root) and name in fs.list_files(parent):
                (item,) = of_files([name], parent, *parsed[:2])
                return item
    elif is_log_directory(fs, parent) and name in fs.list_directories(parent):
        parsed = parse_partition_directory(name)
        if parsed is not None and parsed[2] == FUTURE_DIRECTORY_SUFFIX:
            return _future(path, *parsed[:2])
        found = of_directory(fs, path)
        if found is not None:
            return found
    if not fs.exists(path):
        raise Refused(f"{path} does not exist; `ottla log set-aside list` shows what is set aside")
    raise Refused(
        f"{path} is not set aside: that is a directory `<topic>-<partition>.<32 digits>-stray` of a"
        f" log directory, or a file `*{SET_ASIDE_SUFFIX}` of a partition"
    )


def is_log_directory(fs: FileSystem, path: str) -> bool:
    """Whether a broker has used the directory as one of `log.dirs`. Raises OSError."""
    return fs.exists(path) and not fs.list_files(path).keys().isdisjoint(_OF_LOG_DIRECTORY)


def root_of(item: SetAside) -> str:
    """The log directory of an item."""
    return item.path.rsplit("/", 1 if item.is_log else 2)[0]


def summary_of(fs: FileSystem, item: SetAside) -> LogSummary:
    """Read the contents of an item from its files. Read-only. Raises OSError."""
    if item.is_log:
        return log_summary(fs, item.path)
    directory, _, name = item.path.rpartition("/")
    size = fs.list_files(directory).get(name, 0)
    topic_id = _topic_id(fs, directory)
    if item.base_offset is None or not original_name(name).endswith(LOG_SUFFIX):
        return LogSummary(None, None, size, topic_id)
    content = read_content(fs, item.path, item.base_offset, size)
    return LogSummary(content.first_offset, content.next_offset, size, topic_id)


def log_summary(fs: FileSystem, directory: str) -> LogSummary:
    """The offsets of the log in a partition directory. Reads its last segment. Raises OSError."""
    names = fs.list_files(directory)
    bases = _segments(names)
    topic_id = _topic_id(fs, directory)
    size = sum(names[segment_file_name(base, LOG_SUFFIX)] for base in bases)
    if not bases:
        return LogSummary(None, None, size, topic_id)
    last = next(
        (base for base in reversed(bases) if names[segment_file_name(base, LOG_SUFFIX)]), bases[-1]
    )
    name = segment_file_name(last, LOG_SUFFIX)
    content = read_content(fs, f"{directory}/{name}", last, names[name], checksums=False)
    return LogSummary(bases[0], max(content.next_offset, bases[-1]), size, topic_id)


def _segments(names: dict[str, int]) -> list[int]:
    return sorted(
        offset
        for name in names
        if name.endswith(LOG_SUFFIX) and (offset := offset_of_file(name)) is not None
    )


def _topic_id(fs: FileSystem, directory: str) -> bytes | None:
    try:
        return read_partition_metadata(fs, f"{directory}/{PARTITION_METADATA}")
    except CorruptFile:
        return None


def read_content(
    fs: FileSystem, path: str, base_offset: int, size: int, *, checksums: bool = True
) -> Content:
    """Read all batches of a `.log` file. Raises OSError."""
    first: int | None = None
    expected, epochs, is_transactional = base_offset, list[tuple[int, int]](), False
    damage: str | None = None
    file = PinnedFile(fs, path, OpenFile(fs, path, READ_ONLY))
    try:
        for place, batch in walk_batches(file, 0, size):
            if checksums:
                check_checksum(path, place, batch)
            if place.base_offset < expected:
                reason = f"offset {place.base_offset} comes after offset {expected - 1}"
                raise CorruptLog(path, place.position, reason)
            first = place.base_offset if first is None else first
            expected = place.last_offset + 1
            if place.magic == 2:
                is_transactional |= read_header(batch).is_transactional
                if not epochs or place.leader_epoch != epochs[-1][0]:
                    epochs.append((place.leader_epoch, place.base_offset))
    except CorruptLog as error:
        damage = f"position {error.position}: {error.reason}"
    return Content(base_offset, first, expected, size, tuple(epochs), is_transactional, damage)


# --- changing ---------------------------------------------------------------------------------


class Restorer:
    """Restores and discards items. The locks of `roots` are held, but see `discard`."""

    def __init__(
        self,
        fs: FileSystem,
        roots: Sequence[str],
        now_ms: int,
        *,
        knows_all_roots: bool = False,
        unique_name: UniqueName = lambda: os.urandom(16).hex(),
    ) -> None:
        """`roots`: log directories of the broker; `knows_all_roots`: all of them."""
        self._fs = fs
        self._roots = list(dict.fromkeys(roots))
        self._now_ms = now_ms
        self._knows_all_roots = knows_all_roots
        self._unique_name = unique_name
        self._verified: dict[str, _Extent] = {}

    def restore(self, item: SetAside, *, replace: bool = False) -> str:
        """Take an item back into service. Returns what it did, as a sentence.

        `replace` sets aside a log that is in the place of a whole log. Durable. Raises Refused,
        OSError; CorruptFile for a checkpoint that cannot be read.
        """
        if item.is_log:
            return self._restore_log(item, replace=replace)
        return self._restore_file(item)

    def finish(self, path: str) -> str | None:
        """Complete what was interrupted for an item that has no longer this path.

        Returns what it did, None if there was nothing. Durable. Raises OSError.
        """
        root, _, name = path.rpartition("/")
        if name.endswith(SET_ASIDE_SUFFIX):
            return self._finish_file(path)
        parsed = parse_partition_directory(name)
        if self._fs.exists(path) or parsed is None or not parsed[2] or not self._fs.exists(root):
            return None
        deleted = f"{root}/{_deleted_name(name, *parsed[:2])}"
        if self._fs.exists(deleted):
            self._fs.remove_tree(deleted)
            self._fs.sync_directory(root)
            return f"deleted the rest of {path}"
        for each in self._fs.list_directories(root):
            live = parse_partition_directory(each)
            # The topic name of `path` may have been cut.
            if (
                live is not None
                and (live[1], live[2]) == (parsed[1], "")
                and live[0].startswith(parsed[0])
                and self._remove_note(f"{root}/{each}")
            ):
                return f"{path} is {root}/{each} already"
        return None

    def discard(self, item: SetAside) -> str:
        """Delete an item and its records. Returns what it did. Durable. Raises OSError.

        A broker may run meanwhile, which has none of the files open; not for a future log.
        """
        root, _, name = item.path.rpartition("/")
        if not item.is_log:
            self._fs.remove(item.path)
            self._fs.sync_directory(root)
            return f"deleted {item.path}"
        # A part of a log must not be restored, so the name is the first that goes.
        deleted = f"{root}/{_deleted_name(name, item.topic, item.partition)}"
        self._fs.replace(item.path, deleted)
        self._fs.sync_directory(root)
        self._fs.remove_tree(deleted)
        self._fs.sync_directory(root)
        return f"deleted {item.path}"

    # --- whole logs ---------------------------------------------------------------------------

    def _restore_log(self, item: SetAside, *, replace: bool) -> str:
        fs, root = self._fs, root_of(item)
        key = (item.topic, item.partition)
        name = partition_directory_name(*key)
        target = f"{root}/{name}"
        old_name = item.path.rpartition("/")[2]
        is_cut = len(old_name.encode()) >= _NAME_LENGTH_MAX
        if is_cut and old_name.startswith(f"{name}."):
            raise Refused(
                f"{item.path} has only the first part of a long topic name, and no note with all of"
                " it; rename it by hand to <topic>-<partition>"
            )
        if item.reason in _ABOUT_OTHER_DIRECTORIES and not self._knows_all_roots:
            raise Refused(
                f"{item.path} ({item.reason}): another log directory may have the current log of"
                f" {name}; name all of them with --config server.properties or --log-dir"
            )
        live = [each for each in (f"{one}/{name}" for one in self._roots) if fs.exists(each)]
        own = log_summary(fs, item.path)
        others = [(path, log_summary(fs, path)) for path in live]
        if others and not replace:
            listed = " and ".join(f"{path} ({summary})" for path, summary in others)
            raise Refused(
                f"{item.path} ({own}) cannot become {name}, which is {listed}; --replace sets the"
                " latter aside and takes the former"
            )
        for path in live:
            self._replace(path, key, item)
        # They are about another log, or an earlier one of this partition here.
        for checkpoint in _CHECKPOINTS:
            self._change_checkpoint(root, checkpoint, lambda offsets: offsets.pop(key, None))
        self._recover_at_start(root)
        fs.replace(item.path, target)
        fs.sync_directory(root)
        self._remove_note(target)
        replaced = "".join(f"; {path} is set aside ({summary})" for path, summary in others)
        differs = [
            path
            for path, each in others
            if None not in (own.topic_id, each.topic_id) and own.topic_id != each.topic_id
        ]
        warning = "; its topic id is another one than before, so the broker may refuse it"
        return f"restored {target} ({own}){replaced}{warning if differs else ''}"

    def _replace(self, path: str, key: tuple[str, int], item: SetAside) -> None:
        root = path.rpartition("/")[0]
        detail = f"`ottla log set-aside restore` put {item.path} into its place"
        note = Note(Reason.REPLACED, detail, needs_attention=False, set_aside_ms=self._now_ms)
        write_note(self._fs, path, note, key)
        name = unique_directory_name(*key, self._unique_name(), STRAY_DIRECTORY_SUFFIX)
        self._fs.replace(path, f"{root}/{name}")
        self._fs.sync_directory(root)

    def _remove_note(self, directory: str) -> bool:
        path = f"{directory}/{NOTE_FILE}"
        if not self._fs.exists(path):
            return False
        with suppress(IsADirectoryError):  # of another hand; Kafka and brokers ignore it
            self._fs.remove(path)
        self._fs.sync_directory(directory)
        return True

    # --- files of a log -----------------------------------------------------------------------

    def _restore_file(self, item: SetAside) -> str:
        fs = self._fs
        directory, _, name = item.path.rpartition("/")
        base = item.base_offset
        parsed = parse_partition_directory(directory.rpartition("/")[2])
        if parsed is None or parsed[2]:
            raise Refused(f"{item.path} is a part of a log that is set aside; restore that first")
        if base is None or original_name(name) != segment_file_name(base, LOG_SUFFIX):
            raise Refused(f"{item.path} has no records, the broker rebuilds such files; discard it")
        names = fs.list_files(directory)
        content = read_content(fs, item.path, base, names[name])
        self._check_content(item, content)
        live = self._live(directory, names)
        if content.first_offset is not None and base in (each.base for each in live):
            # The end of a segment: it was cut off and has the name of the segment.
            base = content.first_offset
            content = content._replace(base_offset=base)
        own = _Extent(base, content.next_offset, content.size)
        self._check_place(item, own, live)
        emptied = [each for each in live if not each.size and base < each.base < own.end]
        kept = [each for each in live if each not in emptied and each.base != base]
        segments = sorted((*kept, own))
        self._check_epochs(item, content, directory, segments)
        root, key = root_of(item), (item.topic, item.partition)
        point = self._read_checkpoint(root, RECOVERY_POINT_CHECKPOINT).get(key, 0)
        gaps = [later.base for earlier, later in pairwise(segments) if earlier.end != later.base]
        if gaps and point < gaps[-1]:
            # Recovery that reads a gap may take what is behind it for lost. So it begins there,
            # and what it does not read is verified and on disk.
            for each in kept:
                if each.end > point and each.base < gaps[-1]:
                    self._verify(directory, each)
        self._sync(item.path)

        def begin_at_base(starts: Offsets) -> None:
            if key in starts:
                starts[key] = min(starts[key], base)

        def recover_behind_gaps(points: Offsets) -> None:
            points[key] = max(point, gaps[-1])

        self._change_checkpoint(root, LOG_START_CHECKPOINT, begin_at_base)
        if gaps:
            self._change_checkpoint(root, RECOVERY_POINT_CHECKPOINT, recover_behind_gaps)
        self._merge_epochs(directory, content)
        # The start builds indexes that are missing, and one of transactions that is damaged.
        self._remove_segment(directory, base, SEGMENT_SUFFIXES[1:])
        if content.is_transactional:
            index = f"{directory}/{segment_file_name(base, TXN_INDEX_SUFFIX)}"
            replace_file(fs, index, _DAMAGED_INDEX, sync=True)
        target = f"{directory}/{segment_file_name(base, LOG_SUFFIX)}"
        # An empty segment in its place is replaced.
        fs.replace(item.path, target)
        fs.sync_directory(directory)
        if content.is_transactional:
            self._recover_transactions(root, directory, key, base, gaps)
        for each in emptied:
            self._remove_segment(directory, each.base, SEGMENT_SUFFIXES)
        fs.sync_directory(directory)
        return f"restored {target} (offsets {content.first_offset} to {content.next_offset})"

    def _recover_transactions(
        self, root: str, directory: str, key: tuple[str, int], base: int, gaps: Sequence[int]
    ) -> None:
        """The next start reads all from `base` on, but nothing before a gap.

        What a broker has written meanwhile, producer snapshots and indexes of aborted transactions
        of later segments, is without the transactions that begin in this one. Not before the
        segment is there: recovery would find the gap that it leaves.
        """

        def recover_from_base(points: Offsets) -> None:
            points[key] = max(min(points.get(key, 0), base), *gaps, 0)

        for name in self._fs.list_files(directory):
            offset = offset_of_file(name) if name.endswith(SNAPSHOT_SUFFIX) else None
            if offset is not None and offset > base:
                self._fs.remove(f"{directory}/{name}")
        self._fs.sync_directory(directory)
        self._change_checkpoint(root, RECOVERY_POINT_CHECKPOINT, recover_from_base)
        self._recover_at_start(root)

    def _finish_file(self, path: str) -> str | None:
        directory, _, name = path.rpartition("/")
        base, original = offset_of_file(name), original_name(name)
        parsed = parse_partition_directory(directory.rpartition("/")[2])
        if self._fs.exists(path) or base is None or parsed is None or parsed[2]:
            return None
        target = f"{directory}/{original}"
        if not original.endswith(LOG_SUFFIX) or not self._fs.exists(target):
            return None
        live = self._live(directory, self._fs.list_files(directory))
        gaps = [later.base for earlier, later in pairwise(live) if earlier.end != later.base]
        root = directory.rpartition("/")[0]
        self._recover_transactions(root, directory, parsed[:2], base, gaps)
        return f"{path} is not set aside any more; the next start recovers {target}"

    def _live(self, directory: str, names: dict[str, int]) -> list[_Extent]:
        if any(name.endswith((SWAP_SUFFIX, CLEANED_SUFFIX)) for name in names):
            raise Refused(
                f"a compaction of {directory} was interrupted; start the broker once, so that it"
                " completes that, stop it and try again"
            )
        files, found = OpenFiles(), []
        for base in _segments(names):
            segment = Segment(
                self._fs, directory, base, LogConfig(), files, created_ms=0, sizes=names
            )
            try:
                end = segment.next_offset()
            except (CorruptIndex, CorruptLog):
                end = self._read(directory, base, segment.size).next_offset
            found.append(_Extent(base, max(end, base), segment.size))
            segment.release()
        return found

    def _read(self, directory: str, base: int, size: int, *, checksums: bool = False) -> Content:
        path = f"{directory}/{segment_file_name(base, LOG_SUFFIX)}"
        content = read_content(self._fs, path, base, size, checksums=checksums)
        if content.damage is not None:
            raise Refused(
                f"{path} is damaged ({content.damage}); start the broker once, so that it recovers"
                " the log, stop it and try again"
            )
        return content

    def _verify(self, directory: str, segment: _Extent) -> None:
        """Verify a live segment, once for all items of a partition, and make it durable."""
        path = f"{directory}/{segment_file_name(segment.base, LOG_SUFFIX)}"
        if self._verified.get(path) != segment:
            self._read(directory, segment.base, segment.size, checksums=True)
            self._sync(path)
            self._verified[path] = segment

    def _check_content(self, item: SetAside, content: Content) -> None:
        if content.damage is not None:
            raise Refused(f"{item.path} is damaged ({content.damage}); {_by_hand(item)}")
        if content.first_offset is None:
            raise Refused(f"{item.path} has no records; discard it")
        if content.next_offset - 1 - content.base_offset > MAX_RELATIVE_OFFSET:
            raise Refused(
                f"{item.path} has offset {content.next_offset - 1}, which is too far from that of"
                f" its name; {_by_hand(item)}"
            )

    def _check_place(self, item: SetAside, own: _Extent, live: Sequence[_Extent]) -> None:
        for each in live:
            if each.size and own.base < each.end and each.base < own.end:
                raise Refused(
                    f"{item.path} (offsets {own.base} to {own.end}) overlaps segment {each.base},"
                    f" which ends at {each.end}; {_by_hand(item)}"
                )

    def _check_epochs(
        self, item: SetAside, content: Content, directory: str, segments: Sequence[_Extent]
    ) -> None:
        """Raise Refused where leader epochs would fall: the log has another history."""
        filled = [each for each in segments if each.size]
        at = [each.base for each in filled].index(content.base_offset)
        epochs = list(content.epochs)
        if at:
            epochs = [*self._epochs_of(directory, filled[at - 1]), *epochs]
        if at + 1 < len(filled):
            epochs += self._epochs_of(directory, filled[at + 1])
        if any(later[0] < earlier[0] for earlier, later in pairwise(epochs)):
            raise Refused(
                f"{item.path} has leader epochs that do not fit those of the log before and behind"
                f" it: another leader has written there since; {_by_hand(item)}"
            )

    def _epochs_of(self, directory: str, segment: _Extent) -> tuple[tuple[int, int], ...]:
        return self._read(directory, segment.base, segment.size).epochs

    def _merge_epochs(self, directory: str, content: Content) -> None:
        path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
        if not self._fs.exists(path):
            return  # the broker builds it from all batches
        try:
            starts = dict(read_epoch_checkpoint(self._fs, path))
        except CorruptFile:
            return  # the same
        before = dict(starts)
        for epoch, offset in content.epochs:
            starts[epoch] = min(offset, starts.get(epoch, offset))
        if starts != before:
            write_epoch_checkpoint(self._fs, path, sorted(starts.items()), sync=True)

    def _remove_segment(self, directory: str, base: int, suffixes: Sequence[str]) -> None:
        for suffix in suffixes:
            path = f"{directory}/{segment_file_name(base, suffix)}"
            if self._fs.exists(path):
                self._fs.remove(path)

    # --- a log directory ----------------------------------------------------------------------

    def _read_checkpoint(self, root: str, name: str) -> Offsets:
        return read_offset_checkpoint(self._fs, f"{root}/{name}")

    def _change_checkpoint(self, root: str, name: str, change: Callable[[Offsets], object]) -> None:
        """Raise CorruptFile: the offsets of the other logs would be lost."""
        offsets = self._read_checkpoint(root, name)
        before = dict(offsets)
        change(offsets)
        if offsets != before:
            write_offset_checkpoint(self._fs, f"{root}/{name}", offsets)

    def _recover_at_start(self, root: str) -> None:
        marker = f"{root}/{CLEAN_SHUTDOWN_FILE}"
        if self._fs.exists(marker):
            self._fs.remove(marker)
            self._fs.sync_directory(root)

    def _sync(self, path: str) -> None:
        descriptor = self._fs.open(path, READ_ONLY)
        try:
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)


def _deleted_name(name: str, topic: str, partition: int) -> str:
    """The name of a directory while it is deleted; a start of the broker deletes the rest."""
    for suffix in (STRAY_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX):
        name = name.removesuffix(suffix)
    unique = name.rpartition(".")[2]
    return unique_directory_name(topic, partition, unique, DELETE_DIRECTORY_SUFFIX)


def _by_hand(item: SetAside) -> str:
    return (
        f"`ottla log dump --payload {item.path}` prints its records, and `ottla produce` writes"
        " them again"
    )
