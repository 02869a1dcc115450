"""The files of a job (`--py-files`) in the processes of streaming queries.

Spark starts a long-running Python process for each streaming source, and in older versions for each
sink. It tells these processes of a directory for the files of the job that does not exist
(`streaming_job`), so that nothing that came with the job can be imported there: neither this
package from its zip nor the module of the option `transform`. Batches and tasks are not affected.

The pickled source therefore carries the right paths. It is pickled by a Python process of the
driver, which has them, and all processes that unpickle it run on the driver's host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def job_paths() -> list[str]:
    """The directory of the job's files and the archives in it, as they are on `sys.path`.

    Empty outside of Spark's Python workers.
    """
    from pyspark.core.files import SparkFiles

    if not getattr(SparkFiles, "_is_running_on_worker", False):
        return []
    root = SparkFiles.getRootDirectory()
    below = os.path.join(root, "")
    return [
        path
        for path in sys.path
        if (path == root or path.startswith(below)) and os.path.exists(path)
    ]


def _new_source(paths: list[str]) -> Any:
    """A source without its state, in a process that may not have the paths."""
    import importlib
    import sys

    for path in reversed(paths):
        if path not in sys.path:
            sys.path.insert(1, path)
    importlib.invalidate_caches()
    return object.__new__(importlib.import_module("pyspark_ottla").DefaultSource)


# cloudpickle writes the code of such a function and not its name, for which the package would have
# to be imported.
_new_source.__module__ = "__main__"


def pickled_with_paths(source: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any] | None:
    """What `__reduce_ex__` returns for the source; None where there are no paths to carry."""
    paths = job_paths()
    return (_new_source, (paths,), vars(source)) if paths else None
