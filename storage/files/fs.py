"""The file system interface: all disk access of storage goes through one object.

`RealFileSystem` is the operating system. Tests use a double that keeps files in memory and can lose
unsynced data, fail the next call, or run out of space (`tests/doubles/memory_file_system.py`).
Both use real file descriptors, so `os.sendfile` works with either.

`pwrite` may write fewer bytes than given; `write_fully` handles that.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import partial
from typing import Protocol

from ottla.storage.errors import CorruptFile

Buffer = bytes | bytearray | memoryview

# Otherwise the open of a pipe with the name of a file waits until somebody writes to it.
READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
READ_WRITE = os.O_RDWR | os.O_CLOEXEC
CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
# An existing file is emptied.
CREATE_EMPTY = CREATE | os.O_TRUNC

# Records are for the broker, its group reads them (backup, `ottla log`), others do not. What was
# there before keeps its mode.
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750

# The free bytes of file systems without a size: some remote ones report 0 of 0 blocks.
_UNCOUNTED_BYTES = 1 << 62

#: Errors of opening one file that say nothing about the disk: it is gone, a directory or a broken
#: link has its name, or this user has no permission.
UNUSABLE_FILE = frozenset(
    (errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO)
)
# A directory with the name of a file is renamed, with a number while that name is taken.
_NOT_A_FILE_SUFFIX = ".not-a-file"
_SAME_NAME_MAX = 100


class FileSystem(Protocol):
    """The operations that storage needs from an operating system. All failures raise OSError."""

    def open(self, path: str, flags: int) -> int: ...
    def close(self, descriptor: int) -> None: ...
    def pread(self, descriptor: int, length: int, position: int) -> bytes: ...
    def pread_into(self, descriptor: int, buffer: bytearray | memoryview, position: int) -> int: ...
    def pwrite(self, descriptor: int, buffer: Buffer, position: int) -> int: ...
    def truncate(self, descriptor: int, size: int) -> None: ...
    def size(self, descriptor: int) -> int: ...
    def sync(self, descriptor: int) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def replace(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def make_directory(self, path: str) -> None: ...
    def list_files(self, path: str, unusable: list[str] | None = None) -> dict[str, int]: ...
    def list_directories(self, path: str, dangling: list[str] | None = None) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def identity(self, path: str) -> tuple[int, int]: ...
    def real_path(self, path: str) -> str: ...
    def modified_ms(self, path: str) -> int: ...
    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...


class RealFileSystem:
    """The operating system, with as little overhead as possible."""

    # Made in C, as os.open itself: no Python frame for each file.
    open = staticmethod(partial(os.open, mode=FILE_MODE))
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    # Data and the metadata needed to read it, but not the modification time.
    sync = staticmethod(os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
    replace = staticmethod(os.replace)
    remove = staticmethod(os.unlink)
    exists = staticmethod(os.path.exists)

    def pread_into(self, descriptor: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer, as far as the file has bytes; returns how many."""
        return os.preadv(descriptor, [buffer], position)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents, if it exists.

        Of a symbolic link, with which a person has moved a log to another disk, the link and the
        directory to which it leads.
        """
        import shutil

        is_link = os.path.islink(path)
        with suppress(FileNotFoundError):
            shutil.rmtree(os.path.realpath(path) if is_link else path)
        if is_link:
            os.unlink(path)

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        except FileExistsError:
            if os.path.islink(path):
                text = f"a symbolic link to {os.readlink(path)}, which is not there"
                raise NotADirectoryError(errno.ENOTDIR, text, path) from None
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None

    def list_files(self, path: str, unusable: list[str] | None = None) -> dict[str, int]:
        """The regular files of a directory and their sizes in bytes.

        The names of all else are added to `unusable`: directories, sockets, and links to nowhere,
        in circles, and to where this user may not look.
        """
        found: dict[str, int] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
                    elif unusable is not None:
                        unusable.append(entry.name)
                except OSError as error:
                    _note_unusable(entry, error, unusable)
        return found

    def list_directories(self, path: str, dangling: list[str] | None = None) -> list[str]:
        """The names of the directories in a directory, and of links to directories, in order.

        Links that cannot be used are added to `dangling`.
        """
        found: list[str] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        found.append(entry.name)
                    elif dangling is not None and _leads_nowhere(entry):
                        dangling.append(entry.name)
                except OSError as error:
                    _note_unusable(entry, error, dangling)
        return sorted(found)

    def identity(self, path: str) -> tuple[int, int]:
        """Device and inode: the same for all names of one file or directory."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def real_path(self, path: str) -> str:
        """The path without symbolic links, as far as it exists."""
        return os.path.realpath(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        """Bytes available to unprivileged processes; very many if no size is reported."""
        usage = os.statvfs(path)
        if usage.f_blocks == 0:
            return _UNCOUNTED_BYTES
        return usage.f_bavail * usage.f_frsize

    def total_bytes(self, path: str) -> int:
        usage = os.statvfs(path)
        return usage.f_blocks * usage.f_frsize


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _note_unusable(entry: os.DirEntry[str], error: OSError, dangling: list[str] | None) -> None:
    """Raise `error` if it is one of the disk. Otherwise the entry is gone, or it is a link."""
    if error.errno not in UNUSABLE_FILE:
        raise error
    if dangling is not None and entry.is_symlink():
        dangling.append(entry.name)


def write_fully(fs: FileSystem, descriptor: int, buffer: Buffer, position: int) -> None:
    """Write the whole buffer at `position`, continuing after short writes.

    Raises OSError; a part of the buffer may have been written then.
    """
    written = fs.pwrite(descriptor, buffer, position)
    size = len(buffer)
    if written == size:
        return
    view = memoryview(buffer)
    while written < size:
        more = fs.pwrite(descriptor, view[written:], position + written)
        if more <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        written += more


def read_file(fs: FileSystem, path: str, limit: int) -> bytes:
    """A whole small file. Raises OSError, and CorruptFile if it is a directory, a pipe or a loop of
    links, or has more than `limit` bytes."""
    try:
        descriptor = fs.open(path, READ_ONLY)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise CorruptFile(path, error.strerror or str(error)) from error
        raise
    try:
        size = fs.size(descriptor)
        if size > limit:
            raise CorruptFile(path, f"{size} bytes, expected at most {limit}")
        return fs.pread(descriptor, size, 0)
    except OSError as error:
        if error.errno == errno.ESPIPE:
            raise CorruptFile(path, "it is a pipe") from error
        if error.errno == errno.EISDIR:
            raise CorruptFile(path, error.strerror or str(error)) from error
        raise
    finally:
        fs.close(descriptor)


def clear_path(fs: FileSystem, path: str) -> None:
    """Make way for a file that can be derived again: removes what has its name.

    A directory is renamed, with what is in it. Raises OSError.
    """
    try:
        fs.remove(path)
        return
    except FileNotFoundError:
        return
    except OSError:
        # Linux and POSIX have different errors for a directory.
        if not fs.exists(path):
            raise
    rename_obstacle(fs, path)


def rename_obstacle(fs: FileSystem, path: str) -> None:
    """Give a directory or a link with the name of a file another name. Raises OSError."""
    for number in range(1, _SAME_NAME_MAX):
        name = f"{path}{_NOT_A_FILE_SUFFIX}{number}"
        if not fs.exists(name):
            fs.replace(path, name)
            return
    raise OSError(errno.EEXIST, "a directory has the name of a file", path)


def open_replacing(fs: FileSystem, path: str) -> int:
    """Open a derived file for writing, a new one if what has its name cannot be used.

    Raises OSError.
    """
    try:
        return fs.open(path, CREATE)
    except OSError as error:
        if error.errno not in UNUSABLE_FILE:
            raise
        clear_path(fs, path)
        return fs.open(path, CREATE)


def replace_file(fs: FileSystem, path: str, content: bytes, *, sync: bool) -> None:
    """Replace the file atomically: readers see the old content or the new one, never a mixture.

    With `sync` the new content survives a power failure when this returns. Raises OSError.
    """
    temporary = path + ".tmp"
    descriptor = fs.open(temporary, CREATE_EMPTY)
    try:
        write_fully(fs, descriptor, content, 0)
        if sync:
            fs.sync(descriptor)
    finally:
        fs.close(descriptor)
    try:
        fs.replace(temporary, path)
    except IsADirectoryError:
        clear_path(fs, path)
        fs.replace(temporary, path)
    if sync:
        fs.sync_directory(os.path.dirname(path) or ".")
