"""A file system in memory for storage: loses what was not synced, fails on order, runs full.

Files are anonymous memory files of the kernel, so descriptors are real: sendfile works.

What a power failure leaves (`after_power_failure`): of each file what was last synced, plus, with a
random generator, any part of what was written since; names as they were when their directory, or
the file itself, was last synced. That also holds for directories that were renamed.
"""

from __future__ import annotations

import errno
import gc
import os
from random import Random
from zlib import crc32

from ottla.storage.files.fs import Buffer


class _Node:
    #: Descriptors of logs that a test has dropped, which may be in circles of references.
    open = 0
    collected_at = 500

    def __init__(self) -> None:
        if _Node.open > _Node.collected_at:
            gc.collect()
            _Node.collected_at = 500 + 2 * _Node.open
        _Node.open += 1
        self.descriptor = os.memfd_create("storage", os.MFD_CLOEXEC)
        self.synced = b""
        self.modified_ms = 0

    def __del__(self) -> None:
        _Node.open -= 1
        os.close(self.descriptor)

    @property
    def inode(self) -> int:
        return os.fstat(self.descriptor).st_ino

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def content(self) -> bytes:
        return os.pread(self.descriptor, self.size, 0)


def _renamed(path: str, names: dict[str, str]) -> str:
    for name, target in names.items():
        if path == name or path.startswith(name + "/"):
            return target + path[len(name) :]
    return path


class Fault:
    """Makes a call fail: the `after`-th matching one (from 0), and `times` of them."""

    def __init__(
        self, operation: str, code: int, path_part: str, after: int, times: int, short: bool
    ) -> None:
        self.operation = operation
        self.code = code
        self.path_part = path_part
        self.after = after
        self.times = times
        self.short = short

    def matches(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.path_part not in path or self.times <= 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


class MemoryFileSystem:
    """A `FileSystem` in memory. `calls` lists (operation, path) as they come."""

    def __init__(self, room: int | None = None) -> None:
        """`room`: how many bytes fit; None for no limit."""
        self.room = room
        self.calls: list[tuple[str, str]] = []
        self._live: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        self._directories: set[str] = {"/"}
        self._renames: list[tuple[str, str]] = []  # of directories, not durable yet
        self._faults: list[Fault] = []
        self._by_inode: dict[int, _Node] = {}
        #: Other names of directories: symbolic links, and mounts (bind). For `identity` and
        #: `real_path` only.
        self.links: dict[str, str] = {}
        self.mounts: dict[str, str] = {}

    # --- for tests ---------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        code: int = errno.EIO,
        *,
        path_part: str = "",
        after: int = 0,
        times: int = 1,
        short: bool = False,
    ) -> Fault:
        """The next call of `operation` on a path with `path_part` in it raises OSError(code).

        With `short` a `pwrite` writes half of its bytes and says so instead.
        """
        fault = Fault(operation, code, path_part, after, times, short)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more failures."""
        self._faults.clear()

    def content(self, path: str) -> bytes:
        return self._live[path].content()

    def overwrite(self, path: str, content: bytes) -> None:
        """What a bad disk, or a hand, does to a file."""
        descriptor = self._live[path].descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)

    def overwrite_or_create(self, path: str, content: bytes) -> None:
        """The same for a file that may not exist."""
        if path not in self._live:
            self._create(path)
        self.overwrite(path, content)

    def paths(self) -> list[str]:
        return sorted(self._live)

    def after_power_failure(self, random: Random | None = None) -> MemoryFileSystem:
        """The file system as the next start finds it; this one is not to be used any more."""
        for source, target in reversed(self._renames):
            if target in self._directories and source not in self._directories:
                self._move_directory(target, source)
        fresh = MemoryFileSystem(self.room)
        fresh._directories = set(self._directories)
        for path, node in self._durable.items():
            content = node.synced
            current = node.content()
            if random is not None and current[: len(content)] == content:
                content = current[: random.randint(len(content), len(current))]
            copy = fresh._create(path)
            os.pwrite(copy.descriptor, content, 0)
            copy.synced = content
            fresh._durable[path] = copy
        return fresh

    def after_kill(self) -> MemoryFileSystem:
        """The file system after kill -9: everything written is there, nothing is held open."""
        fresh = MemoryFileSystem(self.room)
        fresh._directories = set(self._directories)
        for path, node in self._live.items():
            copy = fresh._create(path)
            os.pwrite(copy.descriptor, node.content(), 0)
        return fresh

    # --- the interface -----------------------------------------------------------------------

    def _call(self, operation: str, path: str) -> Fault | None:
        self.calls.append((operation, path))
        for fault in self._faults:
            if fault.matches(operation, path):
                if fault.short:
                    return fault
                raise OSError(fault.code, os.strerror(fault.code), path)
        return None

    def _create(self, path: str) -> _Node:
        node = _Node()
        self._live[path] = node
        self._by_inode[node.inode] = node
        return node

    def _node(self, descriptor: int) -> tuple[str, _Node]:
        node = self._by_inode[os.fstat(descriptor).st_ino]
        for path, candidate in self._live.items():
            if candidate is node:
                return path, node
        return "(removed)", node

    def _get(self, path: str) -> _Node:
        node = self._live.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def open(self, path: str, flags: int) -> int:
        self._call("open", path)
        node = self._live.get(path)
        if node is None:
            if not flags & os.O_CREAT or os.path.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = self._create(path)
        if flags & os.O_TRUNC:
            os.ftruncate(node.descriptor, 0)
        return os.dup(node.descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        self._call("pread", self._node(descriptor)[0])
        return os.pread(descriptor, length, position)

    def pread_into(self, descriptor: int, buffer: bytearray | memoryview, position: int) -> int:
        self._call("pread", self._node(descriptor)[0])
        return os.preadv(descriptor, [buffer], position)

    def pwrite(self, descriptor: int, buffer: Buffer, position: int) -> int:
        path, node = self._node(descriptor)
        fault = self._call("pwrite", path)
        view = memoryview(buffer)
        if fault is not None:
            view = view[: len(view) // 2]
        if self.room is not None:
            used = sum(n.size for n in self._live.values())
            growth = max(0, position + len(view) - node.size)
            if used + growth > self.room:
                fits = max(0, len(view) - (used + growth - self.room))
                if fits == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                view = view[:fits]
        return os.pwrite(descriptor, view, position)

    def truncate(self, descriptor: int, size: int) -> None:
        path, node = self._node(descriptor)
        self._call("truncate", path)
        os.ftruncate(descriptor, size)
        # Shortening reaches the disk in order with what follows it; old bytes do not come back.
        node.synced = node.synced[:size]

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        path, node = self._node(descriptor)
        self._call("sync", path)
        node.synced = node.content()
        if path in self._live:
            self._durable[path] = node

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for name in [n for n in self._durable if os.path.dirname(n) == path]:
            if name not in self._live:
                del self._durable[name]
        for name, node in self._live.items():
            if os.path.dirname(name) == path:
                self._durable[name] = node
        self._renames = [each for each in self._renames if os.path.dirname(each[1]) != path]

    def replace(self, source: str, target: str) -> None:
        self._call("replace", source)
        if source in self._directories:
            self._move_directory(source, target)
            self._renames.append((source, target))
            return
        self._live[target] = self._get(source)
        del self._live[source]

    def _move_directory(self, source: str, target: str) -> None:
        prefix = source + "/"
        for names in (self._live, self._durable):
            for name in [n for n in names if n.startswith(prefix)]:
                names[target + name[len(source) :]] = names.pop(name)
        self._directories.discard(source)
        self._directories.add(target)

    def remove(self, path: str) -> None:
        self._call("remove", path)
        self._get(path)
        del self._live[path]

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", path)
        for names in (self._live, self._durable):
            for name in [n for n in names if n.startswith(path + "/")]:
                del names[name]
        self._directories.discard(path)

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def list_files(self, path: str, unusable: list[str] | None = None) -> dict[str, int]:
        self._call("list_files", path)
        return {
            os.path.basename(name): node.size
            for name, node in self._live.items()
            if os.path.dirname(name) == path
        }

    def list_directories(self, path: str, dangling: list[str] | None = None) -> list[str]:
        self._call("list_directories", path)
        return sorted(
            os.path.basename(name)
            for name in self._directories
            if name != "/" and os.path.dirname(name) == path
        )

    def exists(self, path: str) -> bool:
        return path in self._live or path in self._directories

    def identity(self, path: str) -> tuple[int, int]:
        known = self._real(path)
        if not self.exists(known):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return 1, crc32(known.encode())

    def real_path(self, path: str) -> str:
        return _renamed(path, self.links)

    def _real(self, path: str) -> str:
        return _renamed(self.real_path(path), self.mounts)

    def modified_ms(self, path: str) -> int:
        return self._get(path).modified_ms

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", path)
        if self.room is None:
            return 1 << 40
        return self.room - sum(node.size for node in self._live.values())

    def total_bytes(self, path: str) -> int:
        return self.room if self.room is not None else 1 << 40
