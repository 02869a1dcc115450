"""Reads the next chunks of a segment whose readers go from chunk to chunk."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

from ottla.storage.remote.remote_storage import RemoteStorageError

#: Starts a function in a worker thread, some time later.
Background = Callable[[Callable[[], None]], object]

# Readers whose last chunk is remembered, to see that they continue.
_MAX_READERS = 1024
# Chunks that wait for a thread to read them ahead.
_MAX_READ_AHEAD = 64


class ReadAhead:
    """Thread-safe. Without `background` nothing is read ahead. `at_once` chunks are read at the
    same time; the others wait, first come, first served."""

    def __init__(self, background: Background | None, at_once: int = _MAX_READ_AHEAD) -> None:
        self._background = background
        self._at_once = at_once
        self._lock = threading.Lock()
        # The last chunk of each reader, and whether what follows was wanted.
        self._readers: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self._started: set[tuple[str, int]] = set()
        self._queue: deque[tuple[tuple[str, int], Callable[[], object]]] = deque()
        self._running = 0

    def continues(self, key: str, numbers: range) -> bool:
        """Whether a request for these chunks continues an earlier one, so that the chunks after
        them are `wanted`: once for each chunk, although a scan has several requests for it."""
        if self._background is None:
            return False
        first, last = numbers[0], numbers[-1]
        with self._lock:
            readers = self._readers
            came = readers.pop((key, first - 1), None) is not None
            known = readers.get((key, last))
            if known and not came:
                return False
            if first != last:
                came = readers.pop((key, first), None) is not None or came
            continues = came or known is not None or first == 0
            readers[key, last] = continues
            if len(readers) > _MAX_READERS:
                readers.popitem(last=False)
            return continues

    def wanted(self, key: str, ahead: range, has: Callable[[tuple[str, int]], bool]) -> list[int]:
        """The chunks of these that are not read ahead yet; `start` each of them. `has` returns
        whether a chunk is there, or on its way."""
        with self._lock:
            new = []
            for number in ahead:
                if len(self._started) >= _MAX_READ_AHEAD:
                    break
                if (key, number) not in self._started and not has((key, number)):
                    self._started.add((key, number))
                    new.append(number)
            return new

    def start(self, key: str, number: int, load: Callable[[], object]) -> None:
        """Call `load` in a worker thread. The reader that needs the chunk gets its error."""
        with self._lock:
            if self._running >= self._at_once:
                self._queue.append(((key, number), load))
                return
            self._running += 1
        self._post((key, number), load)

    def _post(self, chunk: tuple[str, int], load: Callable[[], object]) -> None:
        assert self._background is not None
        try:
            self._background(partial(self._read, chunk, load))
        except RuntimeError:  # The worker threads are shutting down.
            with self._lock:
                self._running -= 1
                self._started.difference_update([chunk, *(each for each, _ in self._queue)])
                self._queue.clear()

    def _read(self, chunk: tuple[str, int], load: Callable[[], object]) -> None:
        try:
            # The reader that needs the chunk reads it again, and gets the error.
            with contextlib.suppress(RemoteStorageError):
                load()
        finally:
            with self._lock:
                self._started.discard(chunk)
                following = self._queue.popleft() if self._queue else None
                if following is None:
                    self._running -= 1
            if following is not None:
                # Not in this turn of the thread: a reader that waits for a thread comes before.
                self._post(*following)
