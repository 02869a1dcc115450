"""Runs a job's file with the source `ottla` registered in each session that it creates.

`ottla spark run` starts it with spark-submit; arguments are the file and its own arguments.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any
from weakref import WeakSet


def find_file(path: str) -> str:
    """The file where it is, or where a cluster has put what goes with a job."""
    name = os.path.basename(path)
    return path if os.path.exists(path) or not os.path.exists(name) else name


def register_in_sessions() -> None:
    """Makes each session that is created or found from now on know `format("ottla")`."""
    from pyspark.sql import SparkSession

    import pyspark_ottla

    registered: WeakSet[SparkSession] = WeakSet()
    # Any: the method is replaced, and its parameters are those of the installed pyspark.
    builder_class: Any = SparkSession.Builder
    get_or_create = builder_class.getOrCreate

    def get_registered(builder: Any) -> SparkSession:
        session: SparkSession = get_or_create(builder)
        if session not in registered:
            registered.add(session)
            pyspark_ottla.register(session)
        return session

    builder_class.getOrCreate = get_registered


def main(arguments: list[str]) -> None:
    path = find_file(arguments[0])
    sys.argv = [path, *arguments[1:]]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    register_in_sessions()
    runpy.run_path(path, run_name="__main__")
