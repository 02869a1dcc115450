"""The process that forks the workers.

A fork copies one thread only, so it must come before any thread, event loop or client of ZooKeeper
exists, and the supervisor has all of these. So the supervisor, while it is still a plain program
with all modules imported, forks this process, which does nothing but fork workers when it is told
to, and report how they end. The memory of the imported modules is shared by all of them.

It ends when the supervisor does: its end of the socket is closed then, and the workers get SIGTERM,
as they do from the kernel should this process be killed.

The messages are lines of JSON. To this process: {"fork": number, "ports": by listener}. From it:
{"forked": number, "pid": pid} or {"not_forked": number, "errno": number of the error}, and
{"ended": pid, "code": exit code, or minus the signal}.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

# Linux: the signal that a process gets when the one that forked it ends.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

# How long workers may take to stop when the supervisor is gone; then they are killed.
ORPHANS_SECONDS = 30.0

_READ_BYTES = 4096

RunWorker = Callable[[int, Mapping[str, int]], int]


def start_fork_server(run_worker: RunWorker) -> tuple[int, socket.socket]:
    """Forks the fork server; returns its process id and the supervisor's end of the socket.

    `run_worker` runs in each forked worker with its number and its ports of the last start, and
    returns the exit code.
    """
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what is shared stays shared: a collection would write to each object
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    code = 1
    try:
        ours.close()
        # A process group of its own: Ctrl-C in a terminal reaches the supervisor only, which stops
        # the workers in order.
        os.setpgid(0, 0)
        name_process("ottla-forks")
        code = _ForkServer(theirs, run_worker).run()
    finally:
        os._exit(code)


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send a signal to this process when `parent`, which forked it, ends. Where
    that does not exist, on macOS, the end of the sockets is what remains."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)


def name_process(name: str) -> None:
    """The name of this process in `ps -o comm` and `top`, 15 letters at most."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


class _ForkServer:
    def __init__(self, control: socket.socket, run_worker: RunWorker) -> None:
        self._control = control
        self._run_worker = run_worker
        self._received = b""
        self._children: set[int] = set()
        self._wakeup, self._wakeup_writer = os.pipe()

    def run(self) -> int:
        for descriptor in (self._wakeup, self._wakeup_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # systemd and `kill -- -group` signal all processes: the supervisor decides what ends when.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        while True:
            control = self._control.fileno()
            readable, _, _ = select.select([control, self._wakeup], [], [])
            if self._wakeup in readable:
                with suppress(BlockingIOError):
                    os.read(self._wakeup, 4096)
            self._reap()
            if control in readable:
                try:
                    data = self._control.recv(_READ_BYTES)
                except OSError:
                    data = b""
                if not data:
                    self._end_orphans()
                    return 0
                self._received += data
                self._obey()

    def _obey(self) -> None:
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            message = json.loads(line)
            number = message["fork"]
            try:
                pid = self._fork(number, message["ports"])
            except OSError as error:  # too many processes, or too little memory
                self._send({"not_forked": number, "errno": error.errno or 0})
            else:
                self._send({"forked": number, "pid": pid})

    def _fork(self, number: int, ports: Mapping[str, int]) -> int:
        own = os.getpid()
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is for the supervisor
            self._control.close()
            os.close(self._wakeup)
            os.close(self._wakeup_writer)
            name_process(f"ottla-worker-{number}")
            die_with_parent(signal.SIGTERM, own)
            code = self._run_worker(number, ports)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._children.discard(pid)
            self._send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, int]) -> None:
        with suppress(OSError):  # the supervisor has ended: the next read says so
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _end_orphans(self) -> None:
        """The supervisor is gone: its workers end, cleanly if they can."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + ORPHANS_SECONDS
        while self._children and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.05)
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
