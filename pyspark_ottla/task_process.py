"""What the Python processes of Spark's tasks keep from one task to the next."""

from __future__ import annotations

import gc
from functools import cache


def freeze_imports() -> None:
    """Takes what is loaded now out of later garbage collections, in a process of Spark's tasks.

    Spark's worker collects all garbage after each task, and walks over everything that the imports
    of Spark, numpy and pyarrow have left: 10 to 30 ms of CPU time, which the next task waits for.
    Called once the connector's imports are done. Only the first call in a process has an effect, so
    that no task's own objects are frozen after that, and none has one outside of a task.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _freeze_once()


@cache
def _freeze_once() -> None:
    gc.freeze()
