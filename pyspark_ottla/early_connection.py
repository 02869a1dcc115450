"""Lets Spark's Python processes find `worker_start`, see its module `sitecustomize`."""

from __future__ import annotations

import os

FOLDER = os.path.join(os.path.dirname(__file__), "worker_start")


def connect_early(environment: dict[str, str]) -> None:
    """Adds the folder to the path in the environment of a session's Python processes. On a machine
    without the folder the entry has no effect."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if FOLDER not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([FOLDER, *paths])
