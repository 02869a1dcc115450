"""Standard error as the log writes to it: a reader that does not read stops nothing.

A pipe or a terminal whose reader hangs blocks a write, and with it the event loop: the broker would
serve nobody because nobody reads its log. Here what does not fit is kept, up to a bound, and a
thread writes it when the reader goes on; beyond the bound lines are dropped and counted.

The thread starts with the event loop (`LogStream.start_draining`): a supervisor forks its workers
before, and a fork copies neither other threads nor the locks that they would release.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from typing import ClassVar, TextIO
from weakref import WeakSet

logger = logging.getLogger("ottla.log")

MAX_PENDING_BYTES = 1 << 20
"""Some thousand lines: what a broker writes while a terminal is stopped for a look at it."""


class LogStream:
    """The part of a stream that `logging.StreamHandler` uses. Any thread."""

    _may_start_thread: ClassVar[bool] = False
    _all: ClassVar[WeakSet[LogStream]] = WeakSet()

    def __init__(self, descriptor: int, write: Callable[[bytes], int]) -> None:
        """`write` writes what the descriptor takes at once, or raises BlockingIOError."""
        self._descriptor = descriptor
        self._write = write
        self._pending = bytearray()
        self._dropped = 0
        self._drain: threading.Thread | None = None
        self._lock = threading.RLock()
        self._all.add(self)

    @classmethod
    def start_draining(cls) -> None:
        """Allow the threads that write what a reader did not take; this process forks no more."""
        cls._may_start_thread = True
        for stream in list(cls._all):
            stream.flush()

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a forked process: what waits is written by the process that logged it."""
        cls._may_start_thread = False
        for stream in list(cls._all):
            stream._pending.clear()
            stream._dropped, stream._drain, stream._lock = 0, None, threading.RLock()

    def write(self, text: str) -> None:
        with self._lock:
            data = text.encode(errors="backslashreplace")
            if len(self._pending) + len(data) > MAX_PENDING_BYTES:
                self._dropped += 1
                return
            self._pending += data
            self._write_pending()

    def flush(self) -> None:
        """Write what can be written without waiting."""
        with self._lock:
            self._write_pending()

    def _write_pending(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._write(bytes(self._pending))]
        except BlockingIOError:
            if self._drain is None and self._may_start_thread:
                # Not one that the process waits for at its end.
                self._drain = threading.Thread(target=self._wait, name="log-stream", daemon=True)
                self._drain.start()
        except OSError:
            self._pending.clear()  # the reader is gone
        if not self._pending and self._dropped:
            dropped, self._dropped = self._dropped, 0
            logger.warning("%d lines of the log were dropped: nothing read standard error", dropped)

    def _wait(self) -> None:
        """In a thread: write when the reader goes on."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while True:
            poll.poll()
            with self._lock:
                self._write_pending()
                if not self._pending:
                    self._drain = None
                    return


os.register_at_fork(after_in_child=LogStream.forget_after_fork)


def log_stream(stderr: TextIO) -> TextIO | LogStream:
    """The stream for the log: `stderr` itself where a write does not wait for a reader."""
    try:
        descriptor = stderr.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):
        return stderr
    if stat.S_ISSOCK(mode):  # of systemd's journal
        sock = socket.socket(fileno=os.dup(descriptor))
        return LogStream(sock.fileno(), lambda data: sock.send(data, socket.MSG_DONTWAIT))
    opened = reopen_without_waiting(descriptor)
    if opened is None:
        return stderr
    return LogStream(opened, lambda data: os.write(opened, data))


def reopen_without_waiting(descriptor: int) -> int | None:
    """A descriptor of the same pipe or terminal whose writes do not wait; None where there is none.

    The flag belongs to what is opened: set on `descriptor` itself it would hold for the shell, too.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or os.isatty(descriptor)):
        return None
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
