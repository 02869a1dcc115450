"""Directories that have more than one name: by a symbolic link, a bind mount, or a repetition.

Two logs in one directory destroy each other, and the deletion of one deletes both. Directories are
identified by device and inode; a directory that does not exist yet by those of the nearest existing
parent and the names below it. Kafka compares canonical paths, and its lock is by device and inode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations

from ottla.storage.errors import OverlappingDirectories
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    META_PROPERTIES,
    STRAY_DIRECTORY_SUFFIX,
    parse_partition_directory,
)
from ottla.storage.files.log_directory import LogDirectory

#: Device, inode, and the names below it that do not exist.
Identity = tuple[int, int, tuple[str, ...]]

# Of two names of one directory, the one that is kept.
_RANK = ("", FUTURE_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX, DELETE_DIRECTORY_SUFFIX)


class _Named:
    """A directory as it is named, and the identities of it and of all directories above it."""

    def __init__(self, fs: FileSystem, name: str) -> None:
        self.name = name
        self.path = os.path.abspath(name)
        self.real = fs.real_path(self.path)
        self.identity, *above = _identities(fs, self.real)
        self.above = set(above)


def check_distinct(fs: FileSystem, names: Sequence[str]) -> None:
    """Raise OverlappingDirectories when a directory is named twice, is inside another one, or has
    the log directory of another broker where a partition would be. Changes nothing."""
    named = [_Named(fs, name) for name in names]
    for one, other in combinations(named, 2):
        if one.identity == other.identity:
            raise OverlappingDirectories(
                f"{one.name} and {other.name} are one directory{_how(one, other)}: remove one of "
                "the two entries."
            )
    for one, other in combinations(named, 2):
        for inner, outer in ((one, other), (other, one)):
            if outer.identity in inner.above:
                raise _nested(inner.name, outer.name)
    for outer in named:
        _check_children(fs, outer, named)


def check_not_a_partition(fs: FileSystem, names: Sequence[str], other: str) -> None:
    """Raise OverlappingDirectories when `other`, which is no log directory, is one of them or
    would be taken for a partition in one. Changes nothing."""
    place = _Named(fs, other)
    is_like_partition = parse_partition_directory(os.path.basename(place.real)) is not None
    parent = _Named(fs, os.path.dirname(place.real))
    for directory in (_Named(fs, name) for name in names):
        if directory.identity == place.identity:
            raise OverlappingDirectories(
                f"{directory.name} is the directory of the remote storage, {other}: name another "
                "one."
            )
        if is_like_partition and directory.identity == parent.identity:
            raise OverlappingDirectories(
                f"{other}, the directory of the remote storage, has the name of a partition and is "
                f"in {directory.name}, where it would be taken for one: move it out of there."
            )


def _check_children(fs: FileSystem, outer: _Named, named: Sequence[_Named]) -> None:
    # Each child costs a look at the disk, so most starts need none: with a disk for each directory
    # no child is one of them, and a log directory in use was checked when it was new.
    inside = {
        each.identity: each
        for each in named
        if each is not outer and each.identity[0] == outer.identity[0]
    }
    is_new = not fs.exists(f"{outer.path}/{META_PROPERTIES}")
    children: list[str] = []
    if inside or is_new:
        with suppress(OSError):  # one that cannot be read, or does not exist yet
            children = fs.list_directories(outer.path)
    for child in children:
        path = f"{outer.path}/{child}"
        if inside:
            with suppress(OSError):
                inner = inside.get((*fs.identity(path), ()))
                if inner is not None:
                    raise _nested(inner.name, outer.name)
        if is_new and is_log_directory(fs, path):
            raise OverlappingDirectories(
                f"{outer.name} contains {path}, which is the log directory of a broker (it has "
                f"{META_PROPERTIES}) and has the name of a partition: name {path} itself, or "
                "another directory."
            )


def is_log_directory(fs: FileSystem, path: str) -> bool:
    """Whether a directory with the name of a partition is the log directory of a broker."""
    parsed = parse_partition_directory(path.rpartition("/")[2])
    return parsed is not None and not parsed[2] and fs.exists(f"{path}/{META_PROPERTIES}")


def _nested(inner: str, outer: str) -> OverlappingDirectories:
    return OverlappingDirectories(
        f"{inner} is inside {outer}, and one log directory cannot contain another one: name a "
        f"directory outside of {outer}."
    )


def _how(one: _Named, other: _Named) -> str:
    if one.path == other.path:
        return ""
    if one.real == other.real:
        return " (one is a symbolic link)"
    return " (device and inode are equal, as after a bind mount)"


def _identities(fs: FileSystem, path: str) -> Iterator[Identity]:
    """The identities of a real path and of all directories above it, up to the root."""
    missing: list[list[str]] = []
    while True:
        try:
            device, inode = fs.identity(path)
        except OSError:
            parent, _, name = path.rpartition("/")
            if not name:  # not even the root
                yield 0, 0, ()
                return
            for names in missing:
                names.append(name)
            missing.append([name])
            path = parent or "/"
            continue
        for names in missing:
            yield device, inode, tuple(reversed(names))
        missing = []
        yield device, inode, ()
        if path == "/":
            return
        path = os.path.dirname(path)


def second_names(fs: FileSystem, directories: Sequence[LogDirectory]) -> dict[str, str]:
    """The partition directories that are another name of one that is used: path -> path.

    Such as the symbolic link that is left where a partition was moved from by hand. A directory
    that cannot be read is offline afterwards.
    """
    found: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for position, directory in enumerate(directories):
        try:
            for name in fs.list_directories(directory.path):
                parsed = parse_partition_directory(name)
                if parsed is not None:
                    path = f"{directory.path}/{name}"
                    place = (_RANK.index(parsed[2]), position, path)
                    found.setdefault(fs.identity(path), []).append(place)
        except OSError as error:
            directory.fail(error)
    second = {}
    for places in found.values():
        if len(places) > 1:
            kept, *others = sorted(places, key=lambda each: (each[0], _is_link(fs, each[2]), each))
            second.update({path: kept[2] for *_, path in others})
    return second


def _is_link(fs: FileSystem, path: str) -> bool:
    directory, _, name = path.rpartition("/")
    return fs.real_path(path) != f"{fs.real_path(directory)}/{name}"
