"""Imports are taken out of garbage collection in tasks of Spark, once a process, nowhere else."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from pyspark import TaskContext
from pyspark_ottla.task_process import freeze_imports

freeze_imports()
counts = [gc.get_freeze_count()]
TaskContext._getOrCreate()
freeze_imports()
counts.append(gc.get_freeze_count())
gc.unfreeze()
freeze_imports()
counts.append(gc.get_freeze_count())
print(counts[0], counts[1] > 1_000, counts[2])
"""


def test_the_first_task_of_a_process_freezes_the_imports() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["0", "True", "0"], "")
