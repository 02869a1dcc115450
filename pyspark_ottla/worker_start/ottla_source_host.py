"""A process that has the imports of a streaming source, and forks one for each query that starts.

Spark starts a Python of its own for the source of each query, which imports pyspark and this
package before the first trigger. The first of these processes leaves a copy of itself behind: the
host. Each later one hands its connection to the host and waits for the end of the forked process,
which continues where the first one was: with a connection to the JVM and nothing done yet.

The host listens in a directory whose name `register` has chosen, for processes of the same user
with the same Python and path. It ends with the JVM. A process that gets no response does everything
itself.
"""

import array
import json
import os
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A host that does not fork in this time is busy with something else.
RESPONSE_SECONDS = 5
# Processes that wait for the host while it imports; queries start one after another.
BACKLOG = 64
# An environment has some kilobytes.
REQUEST_BYTES_MAX = 4 << 20
# Variables that Python and the C library read when a process starts.
READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ")
# These Spark sets anew for each process.
OF_ONE_PROCESS = "PYTHON_WORKER_FACTORY_"


def address(directory: str) -> str:
    """The socket of the host for this Python with this path, time zone and the like."""
    import zlib

    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(READ_AT_START) and not name.startswith(OF_ONE_PROCESS)
    }
    same = json.dumps([sys.executable, sys.version, variables], sort_keys=True)
    return os.path.join(directory, f"{zlib.crc32(same.encode()):08x}")


def is_of_this_user(control: socket.socket) -> bool:
    """Whether the other end is: the directory may be another one of the same name by now."""
    credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = array.array("I", credentials)
    return user == os.geteuid()


def delegate(directory: str, connection: socket.socket) -> None:
    """Lets a process of the host use the connection to the JVM, and ends this process after it.

    Returns if there is no host, or none that responds.
    """
    path = address(directory)
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(RESPONSE_SECONDS)
        try:
            control.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # of a host that was killed
            return
        if not is_of_this_user(control):
            return
        request = json.dumps({"environment": dict(os.environ), "directory": os.getcwd()}).encode()
        files = array.array("i", [connection.fileno(), 1, 2])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
        control.sendmsg([len(request).to_bytes(4, "big")], rights)
        control.sendall(request)
        if control.recv(1) != b"r":
            return
        import signal

        control.sendall(b"g")  # from here on the connection belongs to the other process
        # Not if it is ignored, as the children of the JVM of an interactive session ignore it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(connection.detach())
        control.settimeout(None)
        with suppress(OSError):
            control.recv(1)
        os._exit(0)


def leave(
    directory: str, connection: socket.socket, jvm: int, prepare: "Callable[[], None]"
) -> "Any":
    """Forks the host, unless there is one; returns None.

    In each process that the host forks it returns that process's file and connection.
    """
    path = address(directory)
    threading = sys.modules.get("threading")
    # A thread, of the machine's own `sitecustomize` for instance, does not follow a fork.
    if os.path.exists(path) or (threading is not None and threading.active_count() > 1):
        return None
    import warnings

    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    with socket.socket(socket.AF_UNIX) as listener:
        watch = os.pidfd_open(jvm)
        try:
            if os.getppid() != jvm:  # it has ended, and the number may be that of another process
                return None
            with suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            listener.bind(path)
            listener.listen(BACKLOG)
            if os.fork():
                return None
            try:
                os.close(connection.detach())
                host(listener, watch, prepare)
                os.unlink(path)
                os.rmdir(directory)  # unless it has the socket of another Python's host
            except Forked as forked:
                return forked.connected
            except Exception:
                pass  # the next query starts as the first one has, and leaves another host
            with suppress(OSError):
                os.unlink(path)
            os._exit(0)
        finally:
            os.close(watch)


class Forked(Exception):
    """Ends the host's loop in a process that it has forked."""

    def __init__(self, connected: "tuple[Any, Any]") -> None:
        self.connected = connected


def host(listener: socket.socket, watch: int, prepare: "Callable[[], None]") -> None:
    """Forks a process for each request until the JVM has ended."""
    import select
    import signal

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none of the forked processes is waited for
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(watch, select.POLLIN)
    while watch not in (ready for ready, _ in poll.poll()):
        control, _ = listener.accept()
        with control:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    connected = take_over(control.dup())
                except (OSError, ValueError):
                    os._exit(1)
                raise Forked(connected)


def take_over(control: socket.socket) -> "tuple[Any, Any]":
    """The connection of the process that has sent the request, with its environment and output."""
    import threading

    control.settimeout(RESPONSE_SECONDS)
    if not is_of_this_user(control):
        os._exit(1)
    files = array.array("i")
    size, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            files.frombytes(content)
    length = int.from_bytes(size, "big")
    if len(files) != 3 or length > REQUEST_BYTES_MAX:
        os._exit(1)
    with control.makefile("rb") as reading:
        request = json.loads(reading.read(length))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    control.sendall(b"r")
    if control.recv(1) != b"g":  # it did not wait
        os._exit(1)
    control.settimeout(None)
    connection = socket.socket(fileno=files[0])
    connection.settimeout(None)
    for number in (1, 2):
        os.dup2(files[number], number)
        os.close(files[number])

    def end_with_it() -> None:
        """Spark ends the process that it has started, not this one."""
        with suppress(OSError):
            control.recv(1)
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()
    buffer_bytes = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    return connection.makefile("rwb", buffer_bytes), connection
