"""Completing or undoing file operations that a crash interrupted in a partition directory."""

from __future__ import annotations

import errno
import logging

from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_of_file,
    segment_file_name,
)
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import SET_ASIDE_SUFFIX, Reason, set_file_aside
from ottla.storage.log.batch_scan import CorruptLog, check_checksum, walk_batches
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET
from ottla.storage.log.segment_file import SegmentFile

logger = logging.getLogger("ottla.storage")

_TEMPORARY_SUFFIX = ".tmp"

#: About the target of a symbolic link.
NOT_THERE = "is not there, or not for this user"


def clean_directory(
    fs: FileSystem, path: str, *, is_compacted: bool = False, unusable: list[str] | None = None
) -> dict[str, int]:
    """Leave complete segments and other valid files only. Returns their names and sizes; the names
    of what is no file are added to `unusable`.

    - Deletes `.deleted`, `.cleaned` and `.tmp` files: the first were to be deleted, the others are
      incomplete.
    - Completes the swap of `.swap` files: removes the segments that they replace, then renames
      them. If `.cleaned` files of the same compaction exist, removes the `.swap` files instead.
      The segments are deleted if `is_compacted` (the log is, or was), the `.swap` file is valid and
      a later segment exists, as there always is. Otherwise they are set aside; or the `.swap` file,
      if it is damaged and what it replaces is there.
    - Deletes index files without a log.

    Raises OSError, also if a `.log` file is a link to nowhere: its records are on a disk that is
    not mounted, and must not be taken for deleted.
    """
    unusable = [] if unusable is None else unusable
    names = fs.list_files(path, unusable)
    for name in unusable:
        is_log = name.endswith(LOG_SUFFIX) and offset_of_file(name) is not None
        if is_log and not fs.exists(f"{path}/{name}"):
            target = fs.real_path(f"{path}/{name}")
            text = f"a symbolic link to {target}, which {NOT_THERE}"
            raise FileNotFoundError(errno.ENOENT, text, f"{path}/{name}")
    if any(_is_unfinished(name) for name in names):
        swaps = _remove_temporaries(fs, path, names)
        if swaps:
            _finish_swaps(fs, path, swaps, is_compacted)
        names = fs.list_files(path)
    for name in list(names):
        offset = offset_of_file(name)
        if offset is None or not name.endswith(SEGMENT_SUFFIXES):
            continue
        if segment_file_name(offset, LOG_SUFFIX) not in names:
            logger.warning("Deleting %s/%s, which has no log file", path, name)
            fs.remove(f"{path}/{name}")
            del names[name]
    return names


def _is_unfinished(name: str) -> bool:
    return name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, _TEMPORARY_SUFFIX))


def _remove_temporaries(fs: FileSystem, path: str, names: dict[str, int]) -> list[str]:
    """Delete incomplete files. Returns the `.swap` files to complete."""
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    oldest_cleaned = min((offset_of_file(name) or 0 for name in cleaned), default=None)
    swaps = []
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            offset = offset_of_file(name) or 0
            if oldest_cleaned is None or offset < oldest_cleaned:
                swaps.append(name)
            elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and (
                segment_file_name(offset, LOG_SUFFIX) not in names
            ):
                _set_aside(fs, path, name, Reason.OVERLAP)  # of no segment that is there
            else:
                fs.remove(f"{path}/{name}")
        elif _is_unfinished(name):
            fs.remove(f"{path}/{name}")
    return swaps


def _finish_swaps(fs: FileSystem, path: str, swaps: list[str], is_compacted: bool) -> None:
    logger.info("%s: Completing the interrupted swap of %d files", path, len(swaps))
    names = fs.list_files(path)
    low = high = -1
    is_proven, refused = is_compacted, set()
    for name in swaps:
        base_offset = offset_of_file(name)
        if base_offset is None or not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        end, damage = _checked(fs, f"{path}/{name}", names[name], base_offset)
        if damage is not None:
            # Compaction has checked what it wrote.
            logger.error("%s: %s is damaged: %s", path, name, damage)
            is_proven = False
            if segment_file_name(base_offset, LOG_SUFFIX) in names:
                refused.add(base_offset)
                continue
        low = base_offset if low < 0 else min(low, base_offset)
        high = max(high, end)
    logs = {name: offset_of_file(name) or 0 for name in names if name.endswith(LOG_SUFFIX)}
    # The active segment is not compacted.
    is_proven = is_proven and any(base_offset >= high for base_offset in logs.values())
    for name in names:
        offset = offset_of_file(name)
        if offset is None or not low <= offset < high or _is_unfinished(name):
            continue
        if name in logs and names[name] and not is_proven:
            _set_aside(fs, path, name, Reason.OVERLAP)
        elif not name.endswith(SET_ASIDE_SUFFIX):
            fs.remove(f"{path}/{name}")
    for name in swaps:
        if offset_of_file(name) not in refused:
            fs.replace(f"{path}/{name}", f"{path}/{name.removesuffix(SWAP_SUFFIX)}")
        elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _set_aside(fs, path, name, Reason.DAMAGED)
        else:
            fs.remove(f"{path}/{name}")


def _set_aside(fs: FileSystem, path: str, name: str, reason: Reason) -> None:
    kept = set_file_aside(fs, f"{path}/{name}", reason)
    logger.error("Set %s/%s aside in %s; see `ottla log set-aside list`", path, name, kept)


def _checked(
    fs: FileSystem, path: str, size: int, base_offset: int
) -> tuple[int, CorruptLog | None]:
    """The offset after the last valid batch, and what is wrong behind it. Raises OSError."""
    file = SegmentFile(fs, path, size, OpenFiles())
    end = base_offset
    try:
        for place, batch in walk_batches(file, 0, size):
            check_checksum(path, place, batch)
            relative = place.last_offset - base_offset
            if place.base_offset < end or relative > MAX_RELATIVE_OFFSET:
                raise CorruptLog(
                    path, place.position, f"unexpected offset {place.base_offset} after {end - 1}"
                )
            end = place.last_offset + 1
    except CorruptLog as damage:
        return end, damage
    finally:
        file.close()
    return end, None
