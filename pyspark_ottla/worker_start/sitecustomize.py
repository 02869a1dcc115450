"""Connects a Python process of Spark's streaming sources before it imports pyspark.

Spark gives such a process ten seconds to connect back, without a setting for it, and imports of
pyspark alone can take longer on a loaded machine. Python imports this module first, as its folder
is on the path of Spark's Python processes; it connects and authenticates at once, and hands the
connection to pyspark when that asks for it. In all other processes it does nothing. An earlier
`sitecustomize` of the machine runs as before.
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
OWNER = "pyspark.util"


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
    file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    if secret is not None:
        content = secret.encode()
        file.write(len(content).to_bytes(4, "big") + content)
        file.flush()
        size = int.from_bytes(file.read(4), "big")
        if file.read(size) != b"ok":
            raise OSError("the JVM did not accept the secret")
    return file, connection


class Handover:
    """Finds `pyspark.util` and makes its first connection the one that is there."""

    def __init__(self, connected: "tuple[Any, Any]") -> None:
        self.connected = [connected]

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
            if self.connected:
                return self.connected.pop()
            return original(*given, **named)

        if original is not None:
            module.local_connect_and_auth = local_connect_and_auth


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


def run_next() -> None:
    """The `sitecustomize` that would have been imported without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        spec.loader.exec_module(module_from_spec(spec))


if RUNNER in sys.orig_argv:
    # After a failure pyspark connects by itself, and has the words for what is wrong.
    with suppress(OSError, KeyError, ValueError):
        sys.meta_path.insert(0, Handover(connect_early()))
run_next()
