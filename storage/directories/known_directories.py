"""`ottla-log-dirs.json`: which log directories a broker has used, so that a missing one is noticed.

Each directory has an id, and the ids and paths of all of them. A directory that was taken out of
`log.dirs`, and an empty one in the place of one that was used (a disk that is not mounted, or was
replaced), look like new ones otherwise: a partition whose only log was there begins again at 0.
Kafka creates it without a word, and that is right for a disk that was replaced; so a missing
directory is an error in the log, and does not stop the start. Kafka ignores the file.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import FileSystem, read_file, replace_file
from ottla.storage.files.layout import META_PROPERTIES, UniqueName
from ottla.storage.files.log_directory import LogDirectory

logger = logging.getLogger("ottla.storage")

KNOWN_DIRECTORIES_FILE = "ottla-log-dirs.json"

_VERSION = 1
# Some thousands of directories.
_BYTES_MAX = 1 << 20
# Of the file, and not of the disk: somebody has put something else there.
_NO_FILE = frozenset(
    (errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
)


class _Known(NamedTuple):
    """The id of a directory, and the path of each directory of the broker by its id.

    Without an id if the file cannot be read: the other directories have it.
    """

    own: str
    paths: dict[str, str]


class KnownDirectories:
    """The directories of a broker over its starts. `missing` has the paths that are not there."""

    def __init__(
        self, fs: FileSystem, directories: Sequence[LogDirectory], unique_name: UniqueName
    ) -> None:
        self._fs = fs
        self._directories = directories
        self._unique_name = unique_name
        self._ids: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self.missing: list[str] = []

    def check(self) -> None:
        """Compare the directories with the last start's, and write the current ones.

        Logs an error for each that is missing. Call it before `meta.properties` is written.
        """
        found: dict[str, _Known] = {}
        empty: list[str] = []
        for directory in self._online():
            try:
                known = _read(self._fs, directory.path)
                if not self._fs.exists(f"{directory.path}/{META_PROPERTIES}"):
                    empty.append(directory.path)
            except OSError as error:
                directory.read_failed(error)
                known = None if directory.is_offline else _Known("", {})
            if known is not None:
                found[directory.path] = known
        self._paths = {}
        for known in found.values():
            self._paths.update(known.paths)
        id_of = {path: id_ for id_, path in self._paths.items()}
        self._ids = {path: known.own or id_of.get(path, "") for path, known in found.items()}
        present = set(self._ids.values())
        offline = {each.path for each in self._directories if each.is_offline}
        lost = {path for id_, path in self._paths.items() if id_ not in present} - offline
        self.missing = sorted(lost)
        for path in self.missing:
            if self._is_back(path, found, present):
                logger.warning(
                    "Log dir %s is back. The directory that was in its place at the last start is "
                    "not there now: what was written to it in the meantime is not served",
                    path,
                )
            else:
                self._report(path)
        online = self._online()
        if not found and 0 < len(empty) < len(online):
            logger.warning(
                "Log dir %s has no %s, and %s has: if it is not new, is its disk mounted?",
                ", ".join(empty),
                META_PROPERTIES,
                next(each.path for each in online if each.path not in empty),
            )
        if len(self._directories) > 1 or found:  # with one directory there is none to miss
            for directory in online:
                self._ids[directory.path] = self._ids.get(directory.path) or self._unique_name()
            self._write()

    def _is_back(self, path: str, found: dict[str, _Known], present: set[str]) -> bool:
        """Whether the directory at `path` was there before the one that is missing: it has its own
        file, which names another directory of this broker."""
        known = found.get(path)
        if known is None or known.paths.get(known.own) != path:
            return False
        return bool((known.paths.keys() & present) - {known.own})

    def _report(self, path: str) -> None:
        is_named = any(each.path == path for each in self._directories)
        logger.error(
            "Log dir %s of the last start is missing: %s. Partitions that have no other log begin"
            " empty on this broker. If the disk was not replaced on purpose, stop the broker, %s"
            " and start it again",
            path,
            "another directory is in its place" if is_named else "it is not in log.dirs",
            "mount the disk there" if is_named else "name it in log.dirs",
        )

    def forget_missing(self) -> None:
        """The broker stops as requested: whoever did that knows what was missing."""
        if self.missing:
            self._paths = {}
            self._write()

    def _write(self) -> None:
        present = {self._ids[each.path]: each.path for each in self._directories_with_id()}
        offline = [each.path for each in self._directories if each.is_offline]
        self._paths = {
            id_: path
            for id_, path in self._paths.items()
            if path in self.missing or path in offline
        } | present
        for directory in self._directories_with_id():
            own = self._ids[directory.path]
            try:
                if _read(self._fs, directory.path) != _Known(own, self._paths):
                    _write(self._fs, directory.path, _Known(own, self._paths))
            except OSError as error:
                if error.errno in _NO_FILE:
                    logger.warning("Failed to write %s: %s", KNOWN_DIRECTORIES_FILE, error)
                else:
                    directory.write_failed(error)

    def _online(self) -> list[LogDirectory]:
        return [each for each in self._directories if not each.is_offline]

    def _directories_with_id(self) -> list[LogDirectory]:
        return [each for each in self._online() if each.path in self._ids]


def _read(fs: FileSystem, directory: str) -> _Known | None:
    """None if there is no file. Raises OSError."""
    path = f"{directory}/{KNOWN_DIRECTORIES_FILE}"
    try:
        fields = json.loads(read_file(fs, path, _BYTES_MAX))
        paths = {str(id_): str(path) for id_, path in fields["directories"].items()}
        return _Known(str(fields["id"]), paths)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        reason = str(error)
    except (CorruptFile, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error)
    logger.warning("Ignoring %s, which cannot be read: %s", path, reason)
    return _Known("", {})


def _write(fs: FileSystem, directory: str, known: _Known) -> None:
    fields = {"version": _VERSION, "id": known.own, "directories": known.paths}
    content = json.dumps(fields, indent=1).encode() + b"\n"
    replace_file(fs, f"{directory}/{KNOWN_DIRECTORIES_FILE}", content, sync=True)
