"""Lets Spark's Python processes find `worker_start`, see its module `sitecustomize`."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from functools import cache

FOLDER = os.path.join(os.path.dirname(__file__), "worker_start")
HOST_VARIABLE = "OTTLA_SOURCE_HOST"


def connect_early(environment: dict[str, str]) -> None:
    """Adds the folder to the path in the environment of a session's Python processes. On a machine
    without the folder the entry has no effect."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if FOLDER not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([FOLDER, *paths])
    environment[HOST_VARIABLE] = _host_directory()


@cache
def _host_directory() -> str:
    """Of the host of this driver's streaming sources, which makes and removes it. This removes what
    a host that was killed has left."""
    directory = os.path.join(tempfile.gettempdir(), f"ottla-source-{secrets.token_hex(8)}")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child of the driver
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
