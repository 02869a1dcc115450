"""What the Python processes of Spark's tasks keep from one task to the next."""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from functools import cache
from typing import Any

# Size of the worker's own buffer, SPARK_BUFFER_SIZE.
BUFFER_BYTES = 65_536


def prepare_process() -> None:
    """Makes the tasks that follow in a process of Spark's tasks cheaper; in others it does nothing.

    Called once the connector's imports are done. Only the first call in a process has an effect, so
    that no task's own objects are frozen after that, and none has one outside of a task.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _prepare_once()


@cache
def _prepare_once() -> None:
    # Spark's worker collects all garbage after each task, and walks over everything that the
    # imports of Spark, numpy and pyarrow have left: 10 to 30 ms of CPU time, which the next task
    # waits for.
    gc.freeze()
    worker = sys.modules.get("pyspark.worker")
    if worker is not None and hasattr(socket, "TCP_QUICKACK"):
        acknowledge_at_once(worker)


def acknowledge_at_once(worker: Any) -> None:
    """Lets the module's `main`, which the daemon looks up for each task, acknowledge what the JVM
    sends when it reads it.

    The JVM writes a task in several small pieces and leaves Nagle's algorithm on: it sends the
    second piece when the first one is acknowledged. The kernel delays that for 40 ms, as nothing is
    sent back before the task is complete.
    """
    main = worker.main

    def run_task(infile: Any, outfile: Any) -> Any:
        with socket.socket(fileno=os.dup(infile.fileno())) as connection:
            # A task may have set a default timeout, which makes both files not blocking.
            connection.settimeout(None)
            if connection.family == socket.AF_UNIX:
                return main(infile, outfile)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reads = AcknowledgedReads(infile, connection)
            return main(io.BufferedReader(reads, BUFFER_BYTES), outfile)

    worker.main = run_task


class AcknowledgedReads(io.RawIOBase):
    """The reads of a file of a TCP connection, with an acknowledgement after each."""

    def __init__(self, file: io.BufferedReader, connection: socket.socket) -> None:
        self._file = file
        self._connection = connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: Any) -> int:
        # At most one read of the socket; what the file has in its buffer comes first.
        count = self._file.readinto1(buffer)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count
