"""The data source of the kill matrix: as `ottla`, with a process killed at one chosen step.

It is shipped with the job (`--py-files`) and changes the connector from outside, which has no
setting for it. A step is a request of the sink, before it is sent or after its response, or the
end of a task or of the driver's commit. A step kills once: it leaves a file in the directory of its
run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_ottla import DefaultSource
from pyspark_ottla.options.sink_options import SinkOptions, parse_sink_options
from pyspark_ottla.write.stream_writer import StreamWriter

KILLED = "killed"
NAMED = "named"
COPIED, RESTORED = "copied", "restored"
EXECUTORS = "executors"


@dataclass(frozen=True)
class KillPoint:
    """`at` is in which process the step is reached, and `victim` what is killed then: `executor`
    or `driver`. `continues` lets the Python process survive its JVM for a while, as on a host that
    has lost its network. `slow` delays the first attempt of a task, so that speculation starts
    another one. `checkpoint` is what an operator does to it when the query has ended: `copied` for
    a query to another topic, `restored` from a backup before the last batch."""

    at: str
    step: str
    when: str
    occurrence: int
    victim: str
    continues: bool = False
    slow: bool = False
    checkpoint: str = ""

    def describe(self) -> str:
        text = f"{self.at} {self.when} {self.step}, number {self.occurrence}"
        text += "" if self.victim == self.at else f", kills {self.victim}"
        text += ", continues" if self.continues else ""
        text += ", with a slow task" if self.slow else ""
        return text + (f", checkpoint {self.checkpoint}" if self.checkpoint else "")


def save(point: KillPoint, directory: str) -> None:
    with open(os.path.join(directory, "point.json"), "w", encoding="utf-8") as file:
        json.dump(asdict(point), file)


def load(directory: str) -> KillPoint:
    with open(os.path.join(directory, "point.json"), encoding="utf-8") as file:
        return KillPoint(**json.load(file))


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def own_jvm() -> int:
    """The process of Spark that started this Python process, itself or by its daemon."""
    pid = os.getppid()
    while True:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"java" in file.read().split(b"\0")[0]:
                return pid
        pid = parent_of(pid)


class Killer:
    """Counts the requests of this process and kills at the chosen one."""

    def __init__(self, directory: str, at: str) -> None:
        self._directory = directory
        self._at = at
        self._point = load(directory)
        self._seen = 0

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        from ottla.protocol.client.blocking import BlockingClient

        if self._point.at != self._at:
            yield
            return
        original, begin, complete = (
            BlockingClient._send,
            BlockingClient.begin,
            BlockingClient.complete,
        )
        early: list[tuple[Any, Any]] = []  # responses of requests that were waited for at once

        def carry_out(client: Any, request: Any, call: Any) -> Any:
            if type(request).__name__.removesuffix("Request") != self._point.step:
                return call()
            chosen = self._seen == self._point.occurrence
            self._seen += 1
            if chosen and self._point.when == "before":
                self.kill()
            response = call()
            if chosen and self._point.when == "after":
                if request.NAME == "Produce":
                    early.append((response, complete(client, response)))
                self.kill()
            return response

        def send(client: Any, step: Any) -> Any:
            return carry_out(client, step.request, lambda: original(client, step))

        def begin_one(client: Any, node_id: int, request: Any, **given: Any) -> Any:
            return carry_out(client, request, lambda: begin(client, node_id, request, **given))

        def complete_one(client: Any, begun: Any) -> Any:
            for known, response in early:
                if known is begun:
                    return response
            return complete(client, begun)

        changed: Any = BlockingClient
        changed._send, changed.begin, changed.complete = send, begin_one, complete_one
        try:
            yield
        finally:
            changed._send, changed.begin, changed.complete = original, begin, complete

    def reach(self, step: str) -> None:
        if (self._point.at, self._point.step) == (self._at, step):
            self.kill()

    def kill(self) -> None:
        path = os.path.join(self._directory, KILLED)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self._point.victim == self._at:
            os.kill(own_jvm(), signal.SIGKILL)
            if not self._point.continues:
                os.kill(os.getpid(), signal.SIGKILL)
            return
        for name in os.listdir(os.path.join(self._directory, EXECUTORS))[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGKILL)

    def note_executor(self) -> None:
        """So that the driver's process can kill one."""
        path = os.path.join(self._directory, EXECUTORS, str(own_jvm()))
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))

    def delay(self, attempt: int, partition: int) -> None:
        if self._point.slow and attempt == 0 and partition == 0:
            time.sleep(3)


class KilledWriter(StreamWriter):
    """The sink's writer with a kill point."""

    def __init__(self, options: SinkOptions, directory: str) -> None:
        super().__init__(options)
        self._directory = directory

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        killer = Killer(self._directory, "executor")
        killer.note_executor()
        context = TaskContext.get()
        assert context is not None
        with killer.armed():
            message = super().write(iterator)
        killer.delay(context.attemptNumber(), context.partitionId())
        killer.reach("end")
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        killer = Killer(self._directory, "driver")
        killer.reach("begin")
        with killer.armed():
            super().commit(messages, batchId)
        killer.reach("end")


class KilledSource(DefaultSource):
    """Takes the kill point from the directory in the option `path`, which the sink ignores."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer: Any = KilledWriter(parse_sink_options(self.options), self.options["path"])
        return writer  # type: ignore[no-any-return]
