"""Starts the Python processes of a session faster. Python imports this module before anything else
in them, as its folder is on their path; in all other processes it does nothing.

- Spark has its Python in a zip, without compiled files: each process compiles all that it imports,
  which takes 0.6 s of CPU time. They import pyspark from the folder of the same installation.
- Spark's daemon forks a process, and forks another one when a query does not read a task to its end
  (`limit`). Each of them imports what it needs. The daemon does that once, before it forks.
- Spark gives the process of a streaming source ten seconds to connect back, without a setting for
  it, and imports can take longer on a loaded machine. That process connects and authenticates at
  once, and hands the connection to pyspark when that asks for it.
- That process is started anew for each query; `ottla_source_host` has the imports of the first one.

An earlier `sitecustomize` of the machine runs as before.
"""

import os
import sys
from contextlib import suppress

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON = "pyspark.daemon"
OWNER = "pyspark.util"
ZIP = os.path.join("lib", "pyspark.zip")

# What tasks and planners import of this package, and what that needs. Not of an older package that
# is installed beside the one that the session has registered.
TASK_MODULES = (
    "pyspark_ottla.read.task",
    "pyspark_ottla.read.admission",
    "pyspark_ottla.write.writing",
    "pyspark_ottla.write.stream_writer",
)
SOURCE_MODULES = (
    "pyspark_ottla.read.admission",
    "pyspark_ottla.cluster.cluster",
    "pyspark_ottla.cluster.connections",
)
PLANNER_MODULES = (
    "pyspark_ottla.read.planning",
    "pyspark_ottla.read.stream_reader_factory",
    "pyspark_ottla.write.two_phase_commit",
    "pyspark_ottla.write.stream_writer_factory",
)


def connect_early() -> "tuple[Any, Any]":
    """Connects to the JVM as `pyspark.util.local_connect_and_auth` does."""
    import socket

    timeout = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if path and secret is None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        connection.connect(path)
    else:
        is_ipv6 = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
        address = ("::1" if is_ipv6 else "127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"]))
        connection = socket.create_connection(address, timeout)
    if secret is not None:
        content = secret.encode()
        connection.sendall(len(content).to_bytes(4, "big") + content)
        # Not by a file with a buffer: what follows belongs to the process that continues.
        size = int.from_bytes(receive(connection, 4), "big")
        if receive(connection, size) != b"ok":
            raise OSError("the JVM did not accept the secret")
    buffer_bytes = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    return connection.makefile("rwb", buffer_bytes), connection


def receive(connection: "Any", size: int) -> bytes:
    """This many bytes. Raises OSError if the connection ends before."""
    received = b""
    while len(received) < size:
        part: bytes = connection.recv(size - len(received))
        if not part:
            raise OSError("the JVM has closed the connection")
        received += part
    return received


class Handover:
    """Finds `pyspark.util` and makes its first connection the one that is there."""

    def __init__(self, connected: "tuple[Any, Any]", directory: "str | None", parent: int) -> None:
        self.connected = [connected]
        self.directory = directory
        self.parent = parent

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != OWNER:
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            # One of its own: a loader of a zip is that of all modules in it.
            own: Any = HandingLoader(spec.loader, self)
            spec.loader = own
        return spec

    def hand_over(self, module: "Any") -> None:
        original: Any = getattr(module, "local_connect_and_auth", None)

        def local_connect_and_auth(*given: "Any", **named: "Any") -> "Any":
            if not self.connected:
                return original(*given, **named)
            connected = self.connected.pop()
            if self.directory is not None:
                with suppress(OSError):
                    return self.leave_host(self.directory, connected[1]) or connected
            return connected

        if original is not None:
            module.local_connect_and_auth = local_connect_and_auth

    def leave_host(self, directory: str, connection: "Any") -> "Any":
        import ottla_source_host  # type: ignore[import-not-found]  # beside this module

        return ottla_source_host.leave(
            directory, connection, self.parent, lambda: import_connector(SOURCE_MODULES)
        )


class HandingLoader:
    """Loads the module as before, then hands the connection over."""

    def __init__(self, loader: "Any", handover: Handover) -> None:
        self._loader = loader
        self._handover = handover

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "Any") -> "Any":
        return self._loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        self._loader.exec_module(module)
        self._handover.hand_over(module)


def unpacked(spec: "ModuleSpec | None") -> "str | None":
    """The folder with the package that this spec has from Spark's zip."""
    if spec is None or not spec.submodule_search_locations:
        return None
    archive = os.path.dirname(next(iter(spec.submodule_search_locations)))
    if not archive.endswith(ZIP):
        return None
    python = os.path.dirname(os.path.dirname(archive))
    # In Spark's own archive beside the zip, in a package of pip around it.
    for folder in (python, os.path.dirname(os.path.dirname(python))):
        if os.path.exists(os.path.join(folder, "pyspark", "sql", "__init__.py")):
            return folder
    return None


class UnpackedPyspark:
    """Finds `pyspark` in its folder instead of in the zip."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "pyspark":
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder

        folder = unpacked(PathFinder.find_spec(name))
        return None if folder is None else PathFinder.find_spec(name, [folder])


def import_before_fork(module: str) -> None:
    """Imports the module whose `main` the forked processes run, and what that imports in them.

    The only thread of these imports is one of Arrow's allocator, which follows a fork.
    """
    import warnings
    from importlib import import_module

    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    # Spark reads the daemon's port from its standard output.
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        import_module(module)
        import_module("pyarrow.compute")
        import_connector(TASK_MODULES if module == "pyspark.worker" else PLANNER_MODULES)
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


def import_connector(modules: "Sequence[str]") -> None:
    """Imports these modules of this package, if it is the one that is installed; what is missing is
    reported by the process that needs it."""
    import gc
    from importlib import import_module
    from importlib.util import find_spec

    with suppress(Exception):
        found = find_spec("pyspark_ottla")
        here = os.path.dirname(os.path.dirname(__file__))
        if found is not None and found.origin and os.path.dirname(found.origin) == here:
            for name in modules:
                import_module(name)
    gc.freeze()  # pages that no process writes to are shared


def run_next() -> None:
    """The `sitecustomize` that would have been imported without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        spec.loader.exec_module(module_from_spec(spec))


if RUNNER in sys.orig_argv or DAEMON in sys.orig_argv:
    sys.meta_path.insert(0, UnpackedPyspark())
if RUNNER in sys.orig_argv:
    # Only Linux has what the host needs.
    host_directory = os.environ.get("OTTLA_SOURCE_HOST") if hasattr(os, "pidfd_open") else None
    jvm = os.getppid()  # before the connection, which shows that it runs
    # After a failure pyspark connects by itself, and has the words for what is wrong.
    with suppress(OSError, KeyError, ValueError):
        early = connect_early()
        sys.meta_path.insert(0, Handover(early, host_directory, jvm))
        if host_directory is not None:
            import ottla_source_host

            ottla_source_host.delegate(host_directory, early[1])
run_next()
if DAEMON in sys.orig_argv and sys.orig_argv[-1].startswith("pyspark."):
    # What is missing is reported by the process that needs it.
    with suppress(Exception):
        import_before_fork(sys.orig_argv[-1])
