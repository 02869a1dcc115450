"""kill -9 of the whole of Spark at every stage of a query: none lost, none twice after that.

Starting Spark is what takes time, so one process runs a query for each stage, and one kill ends
them all: before the first journal entry, inside the first batch, between the journal and the end of
a later batch, and idle.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.doubles.broker_process import BrokerProcess
from tests.spark import crashing_query
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.crashing_query import Query
from tests.spark.streams import started, wait_until
from tests.spark.support import Sent, create_topic, rows_by_place, write

NewTopicName = Callable[[str], str]
Records = dict[tuple[int, int], Sent]


def numbers(begin: int, end: int) -> list[Sent]:
    return [Sent(b"%d" % number, partition=number % 2) for number in range(begin, end)]


def has_done(query: Query, total: int) -> bool:
    """Whether finished batches reach this total of offsets. How records are divided into batches is
    a matter of moments, so nothing here counts batches."""
    finished = [int(path.name) for path in (query.path / "checkpoint/commits").glob("[0-9]*")]
    if not finished:
        return False
    text = (query.path / "checkpoint/offsets" / str(max(finished))).read_text(encoding="utf-8")
    end = json.loads(text.splitlines()[-1])[query.topic]
    return sum(end.values()) == total


def rows(spark: SparkSession, query: Query) -> Records:
    return rows_by_place(spark.read.parquet(str(query.path / "output")))


@contextmanager
def running(spark: SparkSession, query: Query) -> Iterator[None]:
    """Runs the query in the current session until the block ends."""
    running_query = started(replace(query, blocked=None).start(spark))
    try:
        yield
    finally:
        running_query.stop()


@contextmanager
def in_a_process(queries: list[Query], directory: Path) -> Iterator[Callable[[], None]]:
    """Runs them in a process of its own; in the end all of it is killed. What the block gets fails
    with the process's output if that has ended before."""
    work = directory / "work"
    work.mkdir()
    crashing_query.save(queries, directory)
    log = directory / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.crashing_query", str(directory)],
            cwd=ROOT,
            env={**os.environ, **spark_environment(work)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )

    def check() -> None:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]

    try:
        yield check
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Stages:
    """Four queries after the kill, and what had been written for each of them."""

    def __init__(self, broker: BrokerProcess, new_topic: NewTopicName, directory: Path) -> None:
        self._bootstrap = broker.bootstrap
        self._directory = directory
        self.unstarted = self._query(new_topic("crash-unstarted"), "earliest")
        first = new_topic("crash-first")
        # The head moves between the kill and the recovery of batch 0; its start must not move.
        starting = f'{{"{first}":{{"0":-2,"1":-1}}}}'
        self.first = self._query(first, starting, blocked=0)
        self.later = self._query(new_topic("crash-later"), "latest", blocked=1)
        self.idle = self._query(new_topic("crash-idle"), "latest")
        self.queries = [self.unstarted, self.first, self.later, self.idle]
        self.written: dict[str, Records] = {}
        for query in self.queries:
            create_topic(broker.bootstrap, query.topic, 2)
            write(broker.bootstrap, query.topic, numbers(0, 10))

    def _query(self, topic: str, starting: str, blocked: int | None = None) -> Query:
        directory = self._directory / topic
        directory.mkdir()
        return Query(self._bootstrap, topic, str(directory), starting, blocked)

    def write(self, query: Query, begin: int, end: int) -> Records:
        return write(self._bootstrap, query.topic, numbers(begin, end))


@pytest.fixture(scope="module")
def stages(
    broker: BrokerProcess, new_topic: NewTopicName, tmp_path_factory: pytest.TempPathFactory
) -> Stages:
    directory = tmp_path_factory.mktemp("crash")
    stages = Stages(broker, new_topic, directory)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Connected, without a response: this query is stuck before it knows where to start.
        nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
        stuck = replace(stages.unstarted, bootstrap=nowhere, awaited=False)
        with in_a_process([*stages.queries[1:], stuck], directory) as check:

            def wait_for(condition: Callable[[], bool], what: str) -> None:
                def is_so() -> bool:
                    check()
                    return condition()

                wait_until(is_so, what)

            for query in (stages.later, stages.idle):
                # An empty batch: what is there was written before the query began.
                wait_for(lambda query=query: has_done(query, 10), f"batch 0 of {query.topic}")
                stages.written[query.topic] = stages.write(query, 10, 20)
            wait_for(lambda: has_done(stages.idle, 20), "the records of the idle query")
            for query in (stages.first, stages.later):
                wait_for((query.path / "blocked").exists, f"the blocked batch of {query.topic}")
            metadata = stages.unstarted.path / "checkpoint" / "metadata"
            wait_for(metadata.exists, "the start of the query that is stuck")
    return stages


def test_killed_before_the_first_journal_entry(spark: SparkSession, stages: Stages) -> None:
    query = stages.unstarted
    assert not list((query.path / "checkpoint" / "offsets").glob("[0-9]*"))
    with running(spark, query):
        wait_until(lambda: has_done(query, 10), "the first batch")
    assert sorted(int(sent.value or b"") for sent in rows(spark, query).values()) == [*range(10)]


def test_killed_inside_the_first_batch(spark: SparkSession, stages: Stages) -> None:
    query = stages.first
    first = rows(spark, query)
    assert {place[0] for place in first} == {0}, "partition 1 began at its end"
    late = stages.write(query, 10, 30)
    with running(spark, query):
        wait_until(lambda: has_done(query, 30), "the batch after the recovered one")
    assert rows(spark, query) == first | late


def test_killed_between_the_journal_and_the_end_of_a_batch(
    spark: SparkSession, stages: Stages
) -> None:
    query = stages.later
    # Written while nothing runs: must come in a batch of its own, not in the repeated one.
    written = stages.written[query.topic] | stages.write(query, 20, 30)
    with running(spark, query):
        wait_until(lambda: has_done(query, 30), "the batch after the recovered one")
        written |= stages.write(query, 30, 40)
        wait_until(lambda: has_done(query, 40), "one more")
    assert rows(spark, query) == written


def test_killed_while_idle(spark: SparkSession, stages: Stages) -> None:
    query = stages.idle
    assert rows(spark, query) == stages.written[query.topic]
    written = stages.written[query.topic] | stages.write(query, 20, 30)
    with running(spark, query):
        wait_until(lambda: has_done(query, 30), "the batch of what came meanwhile")
    assert rows(spark, query) == written
