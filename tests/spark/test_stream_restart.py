"""kill -9 of the whole of Spark at every stage of a query: none lost, none twice after that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.doubles.broker_process import BrokerProcess
from tests.spark import crashing_query
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.streams import wait_until
from tests.spark.support import Sent, create_topic, rows_by_place, write

NewTopicName = Callable[[str], str]


class Crashing:
    """The query of `crashing_query` over one directory, run here or where it can be killed."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, starting: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._starting = starting
        self.directory = directory

    def kill_in_batch(self, number: int) -> None:
        """Runs it in a process of its own until that batch has written; then kills all of it."""
        work = self.directory / "work"
        work.mkdir(parents=True, exist_ok=True)
        log = self.directory / "log"
        command = [sys.executable, "-m", "tests.spark.crashing_query"]
        arguments = [self._bootstrap, self._topic, str(self.directory), self._starting, str(number)]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command + arguments,
                cwd=ROOT,
                env={**os.environ, **spark_environment(work)},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

        def has_written() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            return (self.directory / "blocked").exists()

        try:
            wait_until(has_written, f"batch {number} to be written")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[None]:
        """Runs it in the session at hand until the block ends."""
        query = crashing_query.start(
            spark, self._bootstrap, self._topic, self.directory, self._starting
        )
        try:
            yield
        finally:
            query.stop()

    def wait_for_commit(self, number: int) -> None:
        wait_until((self.directory / "checkpoint" / "commits" / str(number)).exists, str(number))

    def rows(self, spark: SparkSession) -> dict[tuple[int, int], Sent]:
        return rows_by_place(spark.read.parquet(str(self.directory / "output")))


def numbers(begin: int, end: int) -> list[Sent]:
    return [Sent(b"%d" % number, partition=number % 2) for number in range(begin, end)]


def test_killed_between_the_journal_and_the_end_of_a_batch(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("crash")
    create_topic(broker.bootstrap, topic, 2)
    write(broker.bootstrap, topic, numbers(0, 10))  # before the query, so not for it
    crashing = Crashing(broker.bootstrap, topic, tmp_path, "latest")
    with crashing.running(spark):
        crashing.wait_for_commit(0)  # an empty batch: nothing was there to read
    written = write(broker.bootstrap, topic, numbers(10, 20))
    crashing.kill_in_batch(1)
    # Written while nothing runs: must come in a batch of its own, not in the repeated one.
    written |= write(broker.bootstrap, topic, numbers(20, 30))
    with crashing.running(spark):
        crashing.wait_for_commit(2)
        written |= write(broker.bootstrap, topic, numbers(30, 40))
        crashing.wait_for_commit(3)
    assert crashing.rows(spark) == written


def test_killed_inside_the_first_batch(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    """The head moves between the kill and the recovery of batch 0; its start must not move."""
    topic = new_topic("crash-first")
    create_topic(broker.bootstrap, topic, 2)
    write(broker.bootstrap, topic, numbers(0, 10))
    starting = f'{{"{topic}":{{"0":-2,"1":-1}}}}'
    crashing = Crashing(broker.bootstrap, topic, tmp_path, starting)
    crashing.kill_in_batch(0)
    first = crashing.rows(spark)
    assert {place[0] for place in first} == {0}, "partition 1 began at its end"
    late = write(broker.bootstrap, topic, numbers(10, 30))
    with crashing.running(spark):
        crashing.wait_for_commit(1)
    assert crashing.rows(spark) == first | late
