"""Data of chunks of remote segments, such as their bytes, with the least recently used dropped
first.

Threads that need the same chunk at the same time share one request to the store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

ChunkKey = tuple[str, int]
Content = TypeVar("Content", bound=Sized)


class _Load(Generic[Content]):
    __slots__ = ("content", "done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.content: Content | None = None
        self.error: BaseException | None = None


class ChunkCache(Generic[Content]):
    """At most `max_bytes` of chunks stay; with 0 none. Chunks that are read now are not counted:
    each reading thread has at most the ones of its request."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[ChunkKey, Content] = OrderedDict()
        self._loads: dict[ChunkKey, _Load[Content]] = {}
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, key: ChunkKey, load: Callable[[], Content]) -> Content:
        """The chunk, from memory or from `load`. An error of `load` is raised in all threads that
        wait for the chunk, and is not kept."""
        with self._lock:
            content = self._chunks.get(key)
            if content is not None:
                self._chunks.move_to_end(key)
                self.hits += 1
                return content
            pending = self._loads.get(key)
            if pending is None:
                self.misses += 1
                mine = self._loads[key] = _Load()
            else:
                self.hits += 1
        if pending is not None:
            # `load` ends within the deadlines of the store, and sets this whatever happens.
            pending.done.wait()
            if pending.error is not None:
                raise pending.error
            assert pending.content is not None
            return pending.content
        return self._load(key, mine, load)

    def get_if_cached(self, key: ChunkKey) -> Content | None:
        """The chunk, if it is in memory. Waits for no other thread that reads it."""
        with self._lock:
            content = self._chunks.get(key)
            if content is not None:
                self._chunks.move_to_end(key)
                self.hits += 1
            return content

    def keeps(self, key: ChunkKey) -> bool:
        """Whether the chunk is in memory. Takes no lock, and does not count as its use."""
        return key in self._chunks

    def _load(self, key: ChunkKey, mine: _Load[Content], load: Callable[[], Content]) -> Content:
        try:
            content = mine.content = load()
        except BaseException as error:
            mine.error = error
            raise
        finally:
            with self._lock:
                del self._loads[key]
                if mine.content is not None:
                    self._keep(key, mine.content)
            mine.done.set()
        return content

    def _keep(self, key: ChunkKey, content: Content) -> None:
        if len(content) > self._max_bytes:
            return
        self._chunks[key] = content
        self._bytes += len(content)
        self._drop_excess()

    def _drop_excess(self) -> None:
        while self._bytes > self._max_bytes:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= len(dropped)

    def set_max_bytes(self, max_bytes: int) -> None:
        """Another limit, from now on."""
        with self._lock:
            self._max_bytes = max_bytes
            self._drop_excess()

    def has(self, key: ChunkKey) -> bool:
        """Whether the chunk is in memory or on its way."""
        with self._lock:
            return key in self._chunks or key in self._loads

    def forget(self, key: ChunkKey) -> None:
        """Forget one chunk; it is read again when it is needed."""
        with self._lock:
            content = self._chunks.pop(key, None)
            if content is not None:
                self._bytes -= len(content)

    def drop(self, object_key: str) -> None:
        """Forget the chunks of an object that is deleted."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] == object_key]:
                self._bytes -= len(self._chunks.pop(key))
