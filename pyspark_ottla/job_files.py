"""The files of a job (`--py-files`, `addArtifacts`) in every Python process of Spark.

Spark gives some of its Python processes a wrong directory for the files of a job. The long-running
process of a streaming source gets one that does not exist (`streaming_job`), and in Spark Connect
the tasks of a streaming sink get that of no session. Nothing that came with the job can be imported
there, neither this package from its zip nor the module of the option `transform`.

What Spark pickles for these processes therefore names the right files. It is pickled by a Python
process of the driver, which has them on its path.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple


class JobFiles(NamedTuple):
    """The directory of the job's files, and what of it is on `sys.path`: itself is ""."""

    directory: str
    names: list[str]


def find_job_files() -> JobFiles | None:
    """Those of this process; None outside of Spark's Python workers."""
    from pyspark.core.files import SparkFiles

    if not getattr(SparkFiles, "_is_running_on_worker", False):
        return None
    directory = SparkFiles.getRootDirectory()
    below = os.path.join(directory, "")
    names = [
        path[len(below) :]
        for path in sys.path
        if (path == directory or path.startswith(below)) and os.path.exists(path)
    ]
    return JobFiles(directory, names) if names else None


def _new_object(directory: str, names: list[str], module: str, name: str) -> Any:
    """An object of a class without its state, in a process that may not have the job's files.

    The directory is the driver's. That of another host has the same last part in Spark Connect,
    where it is the session's, and is the process's own otherwise.
    """
    import importlib
    import os
    import sys

    from pyspark.core.files import SparkFiles

    own = SparkFiles.getRootDirectory() if SparkFiles._is_running_on_worker else directory
    last = os.path.basename(directory)
    parent = os.path.dirname(own)
    places = [directory, os.path.join(own, last), os.path.join(parent, last), own]
    for file in reversed(names):
        for place in places:
            path = os.path.join(place, file) if file else place
            if os.path.exists(path):
                if path not in sys.path:
                    sys.path.insert(1, path)
                    sys.path_importer_cache.pop(path, None)
                elif sys.path_importer_cache.get(path) is None:
                    sys.path_importer_cache.pop(path, None)  # was read before it existed
                break
    # Not importlib.invalidate_caches(): Python then reads the directories of Spark's zips again,
    # which takes 0.1 s of CPU time, in each task.
    return object.__new__(getattr(importlib.import_module(module), name))


# cloudpickle writes the code of such a function and not its name, for which the package would have
# to be imported.
_new_object.__module__ = "__main__"


class PickledWithJobFiles:
    """Base of what Spark pickles and sends to processes that may lack the job's files."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        files = find_job_files()
        if files is None:
            return super().__reduce_ex__(protocol)
        kind = type(self)
        state = self.__getstate__() if hasattr(self, "__getstate__") else vars(self)  # since 3.11
        return _new_object, (*files, kind.__module__, kind.__name__), state
