"""A simulated disk: what was written and what was synced kept apart, for files and for names.

Power loss leaves of each file what was last synced plus any part of what was written since, and the
names as they were when their directory was last synced. Files are anonymous memory files of the
kernel, so descriptors are real and `mmap` works. Every call may fail as the seed says.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, field
from random import Random

from ottla.storage.files.fs import Buffer


class File:
    """The content of one file; names point to it."""

    __slots__ = ("descriptor", "path", "synced")

    def __init__(self, path: str, content: bytes = b"") -> None:
        self.descriptor = os.memfd_create("simulated", os.MFD_CLOEXEC)
        self.path = path
        self.synced = content
        if content:
            os.pwrite(self.descriptor, content, 0)

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def content(self) -> bytes:
        return os.pread(self.descriptor, self.size, 0)


@dataclass
class Faults:
    """How often a call fails, out of a million, by error."""

    rates: dict[int, int] = field(default_factory=dict)
    operations: frozenset[str] = frozenset()
    path_part: str = ""

    def error(self, operation: str, path: str, random: Random) -> int:
        """The errno that this call ends with, 0 for none."""
        if not self.rates or operation not in self.operations or self.path_part not in path:
            return 0
        drawn = random.randrange(1_000_000)
        for code, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                return code
        return 0


class Disk:
    """What a machine keeps when its processes die. `mount` gives the file system of a process."""

    def __init__(self, random: Random, room: int | None = None) -> None:
        self.random = random
        self.room = room
        self.live: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.directories: dict[str, None] = {"/": None}
        self.faults = Faults()
        self.used = 0

    def mount(self) -> SimulatedFileSystem:
        return SimulatedFileSystem(self)

    def lose_power(self) -> None:
        """Names and contents become what had reached the disk, and maybe a part of the rest."""
        survivors: dict[str, File] = {}
        for path, file in self.durable.items():
            current, content = file.content(), file.synced
            if current[: len(content)] == content:
                content = current[: self.random.randint(len(content), len(current))]
            survivors[path] = File(path, content)
        self.live = survivors
        self.durable = dict(survivors)

    def content(self, path: str) -> bytes:
        return self.live[path].content()


class SimulatedFileSystem:
    """`ottla.storage.files.fs.FileSystem` of one process on a disk; dead when the process is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, File] = {}
        self.unplugged = False

    def unmount(self) -> None:
        """The process is dead: nothing of it writes any more, its descriptors are closed."""
        self.unplugged = True
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def _call(self, operation: str, path: str) -> None:
        disk = self._disk
        if self.unplugged:
            raise OSError(errno.EIO, "the process is dead", path)
        code = disk.faults.error(operation, path, disk.random)
        if code:
            raise OSError(code, os.strerror(code), path)

    def _get(self, path: str) -> File:
        file = self._disk.live.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return file

    def open(self, path: str, flags: int) -> int:
        self._call("open", path)
        disk = self._disk
        file = disk.live.get(path)
        if file is None:
            if not flags & os.O_CREAT or os.path.dirname(path) not in disk.directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            file = disk.live[path] = File(path)
        if flags & os.O_TRUNC:
            os.ftruncate(file.descriptor, 0)
        descriptor = os.dup(file.descriptor)
        self._open[descriptor] = file
        return descriptor

    def close(self, descriptor: int) -> None:
        if self._open.pop(descriptor, None) is not None:
            os.close(descriptor)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        self._call("pread", self._open[descriptor].path if not self.unplugged else "")
        return os.pread(descriptor, length, position)

    def pwrite(self, descriptor: int, buffer: Buffer, position: int) -> int:
        self._call("pwrite", self._open[descriptor].path if not self.unplugged else "")
        disk, file, view = self._disk, self._open[descriptor], memoryview(buffer)
        if disk.room is not None:
            growth = max(0, position + len(view) - file.size)
            free = disk.room - sum(each.size for each in disk.live.values())
            if growth > free:
                fits = len(view) - (growth - max(0, free))
                if fits <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)
                view = view[:fits]
        if len(view) > 1 and disk.random.randrange(50) == 0:
            view = view[: disk.random.randint(1, len(view))]
        return os.pwrite(descriptor, view, position)

    def truncate(self, descriptor: int, size: int) -> None:
        file = self._open[descriptor]
        self._call("truncate", file.path)
        os.ftruncate(descriptor, size)
        file.synced = file.synced[:size]

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        file = self._open[descriptor]
        self._call("sync", file.path)
        file.synced = file.content()
        if self._disk.live.get(file.path) is file:
            self._disk.durable[file.path] = file

    def map_for_reading(self, descriptor: int, length: int) -> mmap.mmap:
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        disk = self._disk
        if path not in disk.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for name in [each for each in disk.durable if _is_in(each, path)]:
            if name not in disk.live:
                del disk.durable[name]
        for name, file in disk.live.items():
            if _is_in(name, path):
                disk.durable[name] = file

    def replace(self, source: str, target: str) -> None:
        self._call("replace", source)
        disk = self._disk
        if source not in disk.directories:
            file = self._get(source)
            del disk.live[source]
            disk.live[target] = file
            file.path = target
            return
        prefix = source + "/"
        for names in (disk.live, disk.durable):
            for name in [each for each in names if each.startswith(prefix)]:
                file = names.pop(name)
                names[target + name[len(source) :]] = file
                file.path = target + name[len(source) :]
        disk.directories.pop(source)
        disk.directories[target] = None

    def remove(self, path: str) -> None:
        self._call("remove", path)
        self._get(path)
        del self._disk.live[path]

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", path)
        for names in (self._disk.live, self._disk.durable):
            for name in [each for each in names if each.startswith(path + "/")]:
                del names[name]
        self._disk.directories.pop(path, None)

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)
        while path not in self._disk.directories:
            self._disk.directories[path] = None
            path = os.path.dirname(path)

    def list_files(self, path: str) -> dict[str, int]:
        self._call("list_files", path)
        return {
            os.path.basename(name): file.size
            for name, file in self._disk.live.items()
            if _is_in(name, path)
        }

    def list_directories(self, path: str) -> list[str]:
        self._call("list_directories", path)
        return sorted(
            os.path.basename(name) for name in self._disk.directories if _is_in(name, path)
        )

    def exists(self, path: str) -> bool:
        return path in self._disk.live or path in self._disk.directories

    def modified_ms(self, path: str) -> int:
        self._get(path)
        return 0

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", path)
        if self._disk.room is None:
            return 1 << 40
        return self._disk.room - sum(file.size for file in self._disk.live.values())

    def total_bytes(self, path: str) -> int:
        return self._disk.room if self._disk.room is not None else 1 << 40


def _is_in(path: str, directory: str) -> bool:
    prefix = directory.rstrip("/") + "/"
    return path.startswith(prefix) and "/" not in path[len(prefix) :] and path != prefix
