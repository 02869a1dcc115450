"""Objects as files below a folder: a local disk, or a network file system that is mounted.

An object is written to a temporary file, synced and renamed, so that it is there whole or not at
all, also after a power failure. Directories that become empty stay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence

from ottla.storage.files.fs import CREATE_EMPTY, READ_ONLY, Buffer, FileSystem, write_fully
from ottla.storage.files.open_files import OpenFile
from ottla.storage.remote.object_keys import TEMPORARY_SUFFIX
from ottla.storage.remote.object_store import StoredObject
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)

# Directories whose names are known to be durable: about 200 bytes each. When there are more, they
# are synced again.
_MAX_KNOWN_DIRECTORIES = 10_000


class LocalObjectStore:
    """`root` is an absolute path of a directory that exists."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self._lock = threading.Lock()
        self._durable_directories: set[str] = set()

    def put(self, key: str, content: Iterable[Buffer]) -> int:
        path = self._path(key)
        directory = os.path.dirname(path)
        temporary = path + TEMPORARY_SUFFIX
        try:
            descriptor = self._create(temporary, directory)
            try:
                size = self._write(descriptor, content)
            except BaseException:
                self._remove(temporary)
                raise
            self._fs.replace(temporary, path)
            self._fs.sync_directory(directory)
        except OSError as error:
            raise RemoteStorageError(f"Cannot write the object {key}: {error}") from error
        return size

    def _create(self, path: str, directory: str) -> int:
        self._make_durable_directory(directory)
        try:
            return self._fs.open(path, CREATE_EMPTY)
        except FileNotFoundError:  # an operator, or a copy of the store, removed empty directories
            with self._lock:
                self._durable_directories.discard(directory)
            self._make_durable_directory(directory)
            return self._fs.open(path, CREATE_EMPTY)

    def _write(self, descriptor: int, content: Iterable[Buffer]) -> int:
        try:
            position = 0
            for part in content:
                write_fully(self._fs, descriptor, part, position)
                position += len(part)
            self._fs.sync(descriptor)
        finally:
            self._fs.close(descriptor)
        return position

    def _make_durable_directory(self, directory: str) -> None:
        """A new directory is lost in a power failure until its parent is synced."""
        with self._lock:
            if directory in self._durable_directories:
                return
        if not self._fs.exists(self._root):
            # Not made again: it is a mount point, or was moved.
            raise RemoteStorageError(f"The folder {self._root} is not there")
        self._fs.make_directory(directory)
        parent = directory
        while len(parent) > len(self._root):
            parent = os.path.dirname(parent)
            self._fs.sync_directory(parent)
        with self._lock:
            if len(self._durable_directories) >= _MAX_KNOWN_DIRECTORIES:
                self._durable_directories.clear()
            self._durable_directories.add(directory)

    def _remove(self, path: str) -> None:
        try:
            self._fs.remove(path)
        except OSError:
            return  # The next attempt empties it, and `ottla tiered gc` deletes it.

    def get(self, key: str, limit: int) -> bytes:
        with _OpenObject(self._fs, self._path(key), key) as descriptor:
            size = self._fs.size(descriptor)
            if size > limit:
                raise RemoteObjectCorruptError(
                    f"The object {key} has {size} bytes, expected at most {limit}"
                )
            return self._read(key, descriptor, 0, size)

    def open(self, key: str) -> OpenFile:
        """The file of an object, which can be read also after the object is deleted."""
        try:
            return OpenFile(self._fs, self._path(key), READ_ONLY)
        except OSError as error:
            raise _cannot_open(key, error) from None

    def read_into(self, key: str, descriptor: int, position: int, buffer: memoryview) -> None:
        """Fill a buffer from what `open` returned for this object. Raises as `get_range`."""
        done = 0
        try:
            while done < len(buffer):
                read = self._fs.pread_into(descriptor, buffer[done:], position + done)
                if not read:
                    raise _too_short(key, position, len(buffer), done)
                done += read
        except OSError as error:
            raise RemoteStorageError(f"Cannot read the object {key}: {error}") from error

    def get_range(self, key: str, position: int, size: int) -> bytes:
        with _OpenObject(self._fs, self._path(key), key) as descriptor:
            return self._read(key, descriptor, position, size)

    def _read(self, key: str, descriptor: int, position: int, size: int) -> bytes:
        content = self._fs.pread(descriptor, size, position)
        while len(content) < size:  # Linux returns at most 2 GiB at once, a signal may end it.
            more = self._fs.pread(descriptor, size - len(content), position + len(content))
            if not more:
                raise _too_short(key, position, size, len(content))
            content += more
        return content

    def size(self, key: str) -> int:
        with _OpenObject(self._fs, self._path(key), key) as descriptor:
            return self._fs.size(descriptor)

    def delete(self, keys: Sequence[str]) -> None:
        directories = set()
        for key in keys:
            path = self._path(key)
            try:
                self._fs.remove(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise RemoteStorageError(f"Cannot delete the object {key}: {error}") from error
            directories.add(os.path.dirname(path))
        try:
            for directory in directories:
                self._fs.sync_directory(directory)
        except OSError as error:
            raise RemoteStorageError(f"Cannot delete {keys[0]} durably: {error}") from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        # The part of the prefix up to its last `/` is a directory.
        start = prefix.rpartition("/")[0]
        try:
            pending = [f"{self._root}/{start}" if start else self._root]
            while pending:
                directory = pending.pop()
                if not self._fs.exists(directory):
                    continue
                for name in self._fs.list_directories(directory):
                    path = f"{directory}/{name}"
                    key = path[len(self._root) + 1 :]
                    if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                        pending.append(path)
                for name, size in self._fs.list_files(directory).items():
                    path = f"{directory}/{name}"
                    key = path[len(self._root) + 1 :]
                    if key.startswith(prefix):
                        try:
                            modified_ms = self._fs.modified_ms(path)
                        except FileNotFoundError:
                            continue  # It was deleted since.
                        yield StoredObject(key, size, modified_ms)
        except OSError as error:
            raise RemoteStorageError(f"Cannot list the objects of {prefix!r}: {error}") from error

    def close(self) -> None:
        return

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if "" in parts or "." in parts or ".." in parts or "\0" in key:
            raise RemoteStorageError(f"{key!r} cannot be the name of an object in a folder")
        return f"{self._root}/{key}"


class _OpenObject:
    """The open file of an object; maps errors, those of the reads within the block too."""

    def __init__(self, fs: FileSystem, path: str, key: str) -> None:
        self._fs = fs
        self._path = path
        self._key = key
        self._descriptor = -1

    def __enter__(self) -> int:
        try:
            self._descriptor = self._fs.open(self._path, READ_ONLY)
        except OSError as error:
            raise _cannot_open(self._key, error) from None
        return self._descriptor

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self._fs.close(self._descriptor)
        if isinstance(error, OSError):
            raise RemoteStorageError(f"Cannot read the object {self._key}: {error}") from error


def _cannot_open(key: str, error: OSError) -> RemoteStorageError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return RemoteResourceNotFoundError(f"The object {key} does not exist")
    return RemoteStorageError(f"Cannot open the object {key}: {error}")


def _too_short(key: str, position: int, size: int, read: int) -> RemoteObjectCorruptError:
    return RemoteObjectCorruptError(
        f"The object {key} ends at {position + read}, expected {size} bytes from {position} on"
    )
