"""Completing or undoing file operations that a crash interrupted in a partition directory."""

from __future__ import annotations

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
from ottla.storage.log.batch_scan import CorruptLog, walk
from ottla.storage.log.segment_file import SegmentFile

logger = logging.getLogger("ottla.storage")

_TEMPORARY_SUFFIX = ".tmp"


def clean_directory(fs: FileSystem, path: str) -> dict[str, int]:
    """Leaves complete segments and other valid files only. Returns their names and sizes.

    - Deletes `.deleted`, `.cleaned` and `.tmp` files: the first were to be deleted, the others are
      incomplete.
    - Completes the swap of `.swap` files: deletes the segments that they replace, then renames
      them. If `.cleaned` files of the same compaction exist, deletes the `.swap` files instead.
    - Deletes index files without a log.

    Raises OSError.
    """
    names = fs.list_files(path)
    if any(_is_unfinished(name) for name in names):
        swaps = _remove_temporaries(fs, path, names)
        if swaps:
            _finish_swap(fs, path, names, swaps)
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
    """Deletes incomplete files. Returns the `.swap` files to complete."""
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    oldest_cleaned = min((offset_of_file(name) or 0 for name in cleaned), default=None)
    swaps = []
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            if oldest_cleaned is not None and (offset_of_file(name) or 0) >= oldest_cleaned:
                fs.remove(f"{path}/{name}")
            else:
                swaps.append(name)
        elif _is_unfinished(name):
            fs.remove(f"{path}/{name}")
    return swaps


def _finish_swap(fs: FileSystem, path: str, names: dict[str, int], swaps: list[str]) -> None:
    logger.info("%s: Completing the interrupted swap of %d files", path, len(swaps))
    low = high = -1
    for name in swaps:
        base_offset = offset_of_file(name)
        if base_offset is None or not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        low = base_offset if low < 0 else min(low, base_offset)
        high = max(high, _next_offset(fs, f"{path}/{name}", names[name], base_offset))
    for name in names:
        offset = offset_of_file(name)
        if offset is not None and low <= offset < high and not _is_unfinished(name):
            fs.remove(f"{path}/{name}")
    for name in swaps:
        fs.replace(f"{path}/{name}", f"{path}/{name.removesuffix(SWAP_SUFFIX)}")


def _next_offset(fs: FileSystem, path: str, size: int, base_offset: int) -> int:
    file = SegmentFile(fs, path, size, OpenFiles())
    last = base_offset - 1
    try:
        for place in walk(file, 0, size):
            last = place.last_offset
    except CorruptLog as damage:
        logger.warning("Compacted segment is corrupt: %s", damage)
    file.close()
    return last + 1
