"""`make compat-spark-tiered`: direct reads of tiered segments by executors in JVMs of their own.

A Spark master and two workers run as processes, and a driver for each job. The workers have the
credentials of the store in their environment, and no other process has them. With
OTTLA_TEST_STORE=seaweedfs the store verifies signatures, and the reader's key may only read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset
import pytest

from tests.doubles.broker_process import start_broker
from tests.doubles.s3_server import Fault, S3Server, s3_server
from tests.doubles.seaweedfs import READER_ACCESS_KEY, READER_SECRET_KEY
from tests.doubles.standalone_spark import WORKERS, standalone_cluster
from tests.spark.conftest import spark_environment
from tests.spark.test_tiered_read import TOPIC, Tiered, broker_settings, write_history

HERE = Path(__file__).parent
PARTITIONS = 2
TRANSACTIONS = 70
# Committed: one transaction in seven is aborted.
ROWS = 25 * sum(number % 7 != 3 for number in range(TRANSACTIONS))
JOB_SECONDS = 1800
# A worker of Python has ten seconds to start, which a busy machine can miss.
ATTEMPTS = 4
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": READER_ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": READER_SECRET_KEY,
    "STORE_KEY": READER_ACCESS_KEY,
    "STORE_SECRET": READER_SECRET_KEY,
}
STORE = "ottla.remote.rsm.config."


def keys(access_key: str, secret_key: str) -> dict[str, str]:
    return {
        f"{STORE}storage.aws.access.key.id": access_key,
        f"{STORE}storage.aws.secret.access.key": secret_key,
    }


#: Options by the place of the credentials.
PLACES: dict[str, dict[str, str]] = {
    "environment": {},
    "references": keys("${env:STORE_KEY}", "${env:STORE_SECRET}"),
    "options": keys(READER_ACCESS_KEY, READER_SECRET_KEY),
}


class Scene(NamedTuple):
    s3: S3Server
    bootstrap: str
    #: With the logs of master and workers, and a directory for each job.
    work: Path
    master: str
    environment: dict[str, str]

    def run(self, name: str, reads: list[str], faults: list[Fault], **store: str) -> Path:
        """The directory of a job that has ended. The requests of the reads get the faults."""
        for attempt in range(ATTEMPTS):
            directory = self.work / f"{name}-{attempt}"
            directory.mkdir()
            # Each failure of a task takes three of the faults at least.
            job = self._job(reads, store) | {"max_failures": len(faults) or 4}
            (directory / "job.json").write_text(json.dumps(job))
            self.s3.requests.clear()
            self.s3.credentials.clear()
            self.s3.faults = list(faults)
            log = directory / "driver.log"
            with log.open("wb") as output:
                ended = subprocess.run(
                    [sys.executable, str(HERE / "tiered_job.py"), str(directory), self.master],
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env=self.environment,
                    timeout=JOB_SECONDS,
                    check=False,
                )
            self.s3.faults = []
            if ended.returncode == 0:
                return directory
            text = log.read_text(errors="replace")
            if "Timed out while waiting for the Python worker to connect back" not in text:
                break
        raise AssertionError(text[-4000:])

    def _job(self, reads: list[str], store: dict[str, str]) -> dict[str, Any]:
        settings = self.s3.settings()
        del settings["storage.aws.access.key.id"], settings["storage.aws.secret.access.key"]
        return {
            "reads": reads,
            "offsets_per_batch": TRANSACTIONS * 25 // 3,
            "common": {
                "kafka.bootstrap.servers": self.bootstrap,
                "subscribe": TOPIC,
                "includeHeaders": "true",
                "kafka.isolation.level": "read_committed",
                "minPartitions": str(PARTITIONS + WORKERS),
            },
            "store": {
                "ottla.remote.read": "direct",
                "ottla.remote.onError": "fail",
                **{f"{STORE}{setting}": value for setting, value in settings.items()},
                # A request that fails is repeated for this time, so that its task fails soon.
                f"{STORE}storage.s3.api.call.timeout": "300",
                **store,
            },
        }

    def files_with(self, secret: str) -> list[str]:
        """Files that Spark wrote: logs, event logs, plans, pages, checkpoints, temporary files."""
        found = []
        for path in self.work.rglob("*"):
            if path.name == "job.json" or not path.is_file():
                continue
            if secret.encode() in path.read_bytes():
                found.append(str(path.relative_to(self.work)))
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory, work = tmp_path_factory.mktemp("broker"), tmp_path_factory.mktemp("spark")
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = inherited | spark_environment(work) | {"TMPDIR": str(work)}
    with s3_server() as s3, start_broker(directory, **broker_settings(s3.settings())) as broker:
        tiered = Tiered(broker.bootstrap, directory, directory)
        write_history(
            tiered, broker.data_directory, partitions=PARTITIONS, transactions=TRANSACTIONS
        )
        with standalone_cluster(work, environment | CREDENTIALS) as master:
            yield Scene(s3, broker.bootstrap, work, master, environment)


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    """By partition and offset; a row that is there twice is there twice."""
    table = pyarrow.dataset.dataset(directory / f"rows-{name}", format="parquet").to_table()
    found: list[dict[str, Any]] = table.sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    ).to_pylist()
    return found


def task_ends(directory: Path) -> list[dict[str, Any]]:
    """From the event log."""
    (log,) = (directory / "events").iterdir()
    events = map(json.loads, log.read_text().splitlines())
    return [event for event in events if event["Event"] == "SparkListenerTaskEnd"]


def read_by(s3: S3Server) -> set[str]:
    """The access keys of the requests."""
    return {text.partition("Credential=")[2].partition("/")[0] for text in s3.credentials}


@pytest.fixture(scope="module")
def expected(scene: Scene) -> list[dict[str, Any]]:
    """What the broker returns."""
    return rows(scene.run("expected", ["broker"], []), "broker")


@pytest.mark.parametrize("place", PLACES)
def test_rows_are_those_of_the_broker_and_no_file_has_the_secret(
    scene: Scene, expected: list[dict[str, Any]], place: str
) -> None:
    directory = scene.run(place, ["direct", "stream"], [], **PLACES[place])
    assert len(expected) == ROWS
    assert len({(row["partition"], row["offset"]) for row in expected}) == ROWS
    assert rows(directory, "direct") == expected
    assert rows(directory, "stream") == expected
    assert int((directory / "batches").read_text()) >= 3
    assert read_by(scene.s3) == {READER_ACCESS_KEY}
    ends = task_ends(directory)
    assert {end["Task End Reason"]["Reason"] for end in ends} == {"Success"}
    assert len({end["Task Info"]["Executor ID"] for end in ends}) == WORKERS
    for kept in ("plan-direct.txt", "plan-stream.txt", "ui.txt", "driver.log"):
        assert (directory / kept).stat().st_size > 0
    assert scene.files_with(READER_SECRET_KEY) == []


@pytest.mark.parametrize("read", ["direct", "stream"])
def test_tasks_that_fail_are_retried_without_a_row_lost_or_twice(
    scene: Scene, expected: list[dict[str, Any]], read: str
) -> None:
    faults = [Fault.TRUNCATED] * 30 + [Fault.UNAVAILABLE] * 30 + [Fault.LOST] * 30
    directory = scene.run(f"failing-{read}", [read], faults)
    assert read_by(scene.s3) == {READER_ACCESS_KEY}
    assert len(scene.s3.requests) > len(faults), "all faults were met"
    failed = [end for end in task_ends(directory) if end["Task End Reason"]["Reason"] != "Success"]
    assert failed, "a task failed"
    assert rows(directory, read) == expected
    assert scene.files_with(READER_SECRET_KEY) == []


def test_without_the_variable_a_job_fails_and_names_it(scene: Scene) -> None:
    with pytest.raises(AssertionError, match="NOWHERE"):
        scene.run("wrong", ["direct"], [], **keys("${env:STORE_KEY}", "${env:NOWHERE}"))
