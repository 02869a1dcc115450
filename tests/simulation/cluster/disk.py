"""A simulated disk: what was written and what was synced kept apart, for files and for names.

Power loss leaves of each file what was last synced plus any part of what was written since, and the
names as they were when their directory was last synced. Open files are anonymous memory files of
the kernel, so descriptors are real; a file that is not open needs none. Every call may fail as the
seed says, a disk may be full of bytes or of files, and a sync may take long or fail.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol
from zlib import crc32

from ottla.storage.files.fs import Buffer

READING = frozenset(("open", "pread", "list_files", "list_directories"))
WRITING = frozenset(("pwrite", "truncate", "replace", "remove", "make_directory", "create"))
SYNCING = frozenset(("sync", "sync_directory"))
# One in so many writes is a short one.
SHORT_WRITES = 50
# What a torn write leaves out at most.
PAGE_BYTES = 4096


def _real(create: Callable[[], int]) -> int:
    """A descriptor of the kernel. Without one the simulation ends: code that is under test must
    not take the limit of the machine for a trouble, which the seed does not have."""
    try:
        return create()
    except OSError as error:
        raise SystemExit(f"the simulation itself needs more (ulimit -Hn): {error}") from error


class File:
    """The content of one file; names point to it."""

    __slots__ = ("_closed", "_descriptor", "_users", "changes", "path", "size", "synced")

    def __init__(self, path: str, content: bytes = b"") -> None:
        self._users = 0
        #: The content while no process has it open.
        self._closed = content
        self.path = path
        #: Grows with each change of the content.
        self.changes = 0
        self.synced = content
        self.size = len(content)

    def __del__(self) -> None:
        if self._users:
            os.close(self._descriptor)

    def open(self) -> int:
        """A new descriptor, for `close`."""
        if not self._users:
            self._descriptor = _real(lambda: os.memfd_create("simulated", os.MFD_CLOEXEC))
            os.pwrite(self._descriptor, self._closed, 0)
            self._closed = b""
        descriptor = _real(lambda: os.dup(self._descriptor))
        self._users += 1
        return descriptor

    def close(self, descriptor: int) -> None:
        os.close(descriptor)
        if self._users == 1:
            self._closed = self.content()
            os.close(self._descriptor)
        self._users -= 1

    def content(self) -> bytes:
        return os.pread(self._descriptor, self.size, 0) if self._users else self._closed

    def truncate(self, size: int) -> None:
        """Of an open file."""
        os.ftruncate(self._descriptor, size)
        self.size = size
        self.changes += 1

    def drop_unsynced(self) -> None:
        """An open file holds what was last synced."""
        self.truncate(0)
        self.size = os.pwrite(self._descriptor, self.synced, 0)


class Names:
    """The files of one directory: as processes see them, and as they are after power loss."""

    __slots__ = ("durable", "live")

    def __init__(self) -> None:
        self.live: dict[str, File] = {}
        self.durable: dict[str, File] = {}


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


class ProcessDied(BaseException):
    """The process ends within this call: no code of it handles that."""


@dataclass
class Death:
    """The process dies in one of the next calls, in the middle of whatever it does there."""

    operation: str
    path_part: str
    left: int
    strike: Callable[[], None]

    def is_now(self, operation: str, path: str) -> bool:
        if operation == self.operation and self.path_part in path:
            self.left -= 1
        return self.left < 0


class Counter(Protocol):
    """Counts the calls of a file system."""

    steps: int


class Slowness(NamedTuple):
    """How long a sync or a read takes: up to `seconds`, where `wait` makes its caller wait."""

    seconds: float
    wait: Callable[[float], None]
    #: Only of these files: small ones are on disk at once where much is written.
    path_part: str = ""


class Disk:
    """What a machine keeps when its processes die. `mount` gives the file system of a process."""

    def __init__(self, random: Random, counter: Counter) -> None:
        self.random = random
        self.counter = counter
        self.names: dict[str, Names] = {"/": Names()}
        self._is_checked = False
        self.heal()

    @property
    def is_checked(self) -> bool:
        """Whether a check reads, and not the process."""
        return self._is_checked

    @contextmanager
    def checked(self) -> Iterator[None]:
        """What is called meanwhile meets no trouble: a check that cannot read sees nothing, and
        would pass."""
        self._is_checked = True
        try:
            yield
        finally:
            self._is_checked = False

    def erase(self) -> None:
        """Nothing is on it any more."""
        self.names = {"/": Names()}

    def empty(self, ending: str) -> None:
        """Of the files with this ending of their path, the content is lost."""
        for path, names in self.names.items():
            for name in names.live:
                if f"{path}/{name}".endswith(ending):
                    names.live[name] = names.durable[name] = File(f"{path}/{name}")

    def heal(self) -> None:
        """No more failures, and room for everything."""
        self.faults = Faults()
        #: How many bytes and files fit, None for no limit.
        self.room: int | None = None
        self.room_for_files: int | None = None
        self.slowness: Slowness | None = None
        #: As `slowness`, for reads.
        self.slow_reading: Slowness | None = None
        #: Is called with the path before a file is opened, and may make its caller wait.
        self.before_open: Callable[[str], None] | None = None
        self.death: Death | None = None
        #: Whether a failed sync loses what was to be synced, as it does with most kernels.
        self.drops_unsynced = False

    def mount(self) -> SimulatedFileSystem:
        return SimulatedFileSystem(self)

    @property
    def used(self) -> int:
        """Bytes in all files."""
        return sum(file.size for names in self.names.values() for file in names.live.values())

    @property
    def files(self) -> int:
        """How many files there are."""
        return sum(len(names.live) for names in self.names.values())

    def directories_in(self, path: str) -> list[str]:
        """The names of the directories in a directory."""
        return sorted(
            os.path.basename(each)
            for each in self.names
            if each != path and os.path.dirname(each) == path
        )

    def lose_power(self) -> None:
        """Names and contents become what had reached the disk, and maybe a part of the rest."""
        for names in self.names.values():
            survivors: dict[str, File] = {}
            for name, file in names.durable.items():
                current, content = file.content(), file.synced
                if current[: len(content)] == content:
                    written = current[: self.random.randint(len(content), len(current))]
                    content += self._torn(written[len(content) :])
                survivors[name] = File(file.path, content)
            names.live = survivors
            names.durable = dict(survivors)

    def _torn(self, written: bytes) -> bytes:
        """The kernel writes pages in any order: one may be missing before others that are there."""
        if not written or self.random.random() < 0.5:
            return written
        start = self.random.randrange(len(written))
        end = min(len(written), start + self.random.randint(1, PAGE_BYTES))
        return written[:start] + bytes(end - start) + written[end:]


class SimulatedFileSystem:
    """`ottla.storage.files.fs.FileSystem` of one process on a disk; dead when the process is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, File] = {}
        self.unplugged = False

    def unmount(self) -> None:
        """The process is dead: nothing of it writes any more, its descriptors are closed."""
        self.unplugged = True
        for descriptor, file in self._open.items():
            file.close(descriptor)
        self._open.clear()

    def _call(self, operation: str, path: str) -> None:
        disk = self._disk
        if self.unplugged:
            raise OSError(errno.EIO, "the process is dead", path)
        if disk.is_checked:
            return
        disk.counter.steps += 1
        death = disk.death
        if death is not None and death.is_now(operation, path):
            disk.death = None
            self.unplugged = True
            death.strike()
            raise ProcessDied(path)
        faults = disk.faults
        if faults.rates:
            code = faults.error(operation, path, disk.random)
            if code:
                raise OSError(code, os.strerror(code), path)

    def _file(self, operation: str, descriptor: int) -> File:
        """The file of a descriptor, for an operation that may fail."""
        if self.unplugged:
            raise OSError(errno.EIO, "the process is dead")
        file = self._open[descriptor]
        self._call(operation, file.path)
        return file

    def _names(self, path: str) -> tuple[Names, str]:
        directory, _, name = path.rpartition("/")
        found = self._disk.names.get(directory or "/")
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return found, name

    def open(self, path: str, flags: int) -> int:
        if self._disk.before_open is not None and not self._disk.is_checked:
            self._disk.before_open(path)
        self._call("open", path)
        names, name = self._names(path)
        file = names.live.get(name)
        if file is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._check_room_for_a_file(path)
            file = names.live[name] = File(path)
        descriptor = file.open()
        if flags & os.O_TRUNC:
            file.truncate(0)
        self._open[descriptor] = file
        return descriptor

    def _check_room_for_a_file(self, path: str) -> None:
        self._call("create", path)
        limit = self._disk.room_for_files
        if limit is not None and self._disk.files >= limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def close(self, descriptor: int) -> None:
        file = self._open.pop(descriptor, None)
        if file is not None:
            file.close(descriptor)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        file, slowness = self._file("pread", descriptor), self._disk.slow_reading
        if slowness is not None and slowness.path_part in file.path and not self._disk.is_checked:
            slowness.wait(self._disk.random.uniform(0, slowness.seconds))
        return os.pread(descriptor, length, position)

    def pread_into(self, descriptor: int, buffer: bytearray | memoryview, position: int) -> int:
        content = self.pread(descriptor, len(buffer), position)
        buffer[: len(content)] = content
        return len(content)

    def pwrite(self, descriptor: int, buffer: Buffer, position: int) -> int:
        file = self._file("pwrite", descriptor)
        disk, view = self._disk, buffer
        if disk.room is not None:
            view = memoryview(view)
            growth = max(0, position + len(view) - file.size)
            free = max(0, disk.room - disk.used)
            if growth > free:
                view = view[: max(0, len(view) - (growth - free))]
                if not view:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)
        if len(view) > 1 and disk.random.random() * SHORT_WRITES < 1:
            view = memoryview(view)[: disk.random.randint(1, len(view))]
        written = os.pwrite(descriptor, view, position)
        file.size = max(file.size, position + written)
        file.changes += 1
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        file = self._file("truncate", descriptor)
        file.truncate(size)
        file.synced = file.synced[:size]

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        slowness, file = self._disk.slowness, self._open[descriptor]
        if slowness is not None and slowness.path_part in file.path:
            slowness.wait(self._disk.random.uniform(0, slowness.seconds))
        try:
            self._call("sync", file.path)
        except OSError:
            if self._disk.drops_unsynced and not self.unplugged:
                file.drop_unsynced()
            raise
        # Its name need not be on disk: POSIX does not promise that, though ext4 and XFS do it.
        file.synced = file.content()

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        names = self._disk.names.get(path)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        names.durable = dict(names.live)

    def replace(self, source: str, target: str) -> None:
        self._call("replace", source)
        if source in self._disk.names:
            self._call("rename", source)
            self._rename_directory(source, target)
            return
        names, name = self._names(source)
        if name not in names.live:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        others, other = self._names(target)
        file = others.live[other] = names.live.pop(name)
        file.path = target

    def _rename_directory(self, source: str, target: str) -> None:
        """Durable at once; what was there is moved as it is."""
        if target in self._disk.names and self._disk.names[target].live:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        names = self._disk.names[target] = self._disk.names.pop(source)
        for files in (names.live, names.durable):
            for name, file in files.items():
                file.path = f"{target}/{name}"

    def remove(self, path: str) -> None:
        self._call("remove", path)
        names, name = self._names(path)
        if name not in names.live:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del names.live[name]

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", path)
        self._disk.names.pop(path, None)

    def make_directory(self, path: str) -> None:
        if path not in self._disk.names:
            self._check_room_for_a_file(path)
        while path not in self._disk.names:
            self._disk.names[path] = Names()
            path = os.path.dirname(path)

    def list_files(self, path: str, unusable: list[str] | None = None) -> dict[str, int]:
        self._call("list_files", path)
        names = self._disk.names.get(path)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return {name: file.size for name, file in names.live.items()}

    def list_directories(self, path: str, dangling: list[str] | None = None) -> list[str]:
        self._call("list_directories", path)
        return self._disk.directories_in(path)

    def exists(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        names = self._disk.names.get(directory)
        return path in self._disk.names or (names is not None and name in names.live)

    def identity(self, path: str) -> tuple[int, int]:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return 1, crc32(path.encode())

    def real_path(self, path: str) -> str:
        return path

    def modified_ms(self, path: str) -> int:
        names, name = self._names(path)
        if name not in names.live:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return 0

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", path)
        if self._disk.room is None:
            return 1 << 40
        return max(0, self._disk.room - self._disk.used)

    def total_bytes(self, path: str) -> int:
        return self._disk.room if self._disk.room is not None else 1 << 40
