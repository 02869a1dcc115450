"""The queries of a landing job: progress, failures, and slow starts of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.land import job
from pyspark_ottla.land.job import Landing, check_table, progress_line
from pyspark_ottla.land.plan import LandOptions


class FakeQuery:
    """A streaming query that has ended, or ends when it is stopped."""

    def __init__(self, failure: str = "", *batches: int, active: bool = False) -> None:
        self.isActive = active
        self.failure = failure
        self.recentProgress = [
            {
                "batchId": number,
                "numInputRows": rows,
                "durationMs": {"triggerExecution": 1500},
                "observedMetrics": {"decode": {"records": rows, "bad": number}},
            }
            for number, rows in enumerate(batches)
        ]

    def exception(self) -> str | None:
        return self.failure or None

    def stop(self) -> None:
        self.isActive = False


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "POLL_SECONDS", 0)


def landing(*queries: FakeQuery) -> Landing:
    given = iter(queries)
    found: Any = Landing(lambda _: next(given))  # type: ignore[arg-type,return-value]
    checked: Landing = found
    return checked


def test_batches_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    running = landing(FakeQuery("", 3, 0, 4), FakeQuery("", 5))
    running.run(["a", "b"])
    assert running.rows == 12
    assert capsys.readouterr().out.splitlines() == [
        "a: batch 0, 3 records in 1.5 s",
        "a: batch 2, 4 records in 1.5 s, 2 could not be decoded",
        "b: batch 0, 5 records in 1.5 s",
    ]


FAILED = "x\npyspark_ottla.errors.ConnectorError: [DECODE_FAILED] No. Do this.\n at"


def test_a_failure_leaves_the_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    running = landing(FakeQuery(FAILED), FakeQuery("", 3), FakeQuery("", 4))
    running.run(["a", "b", "c"])
    assert running.rows == 7
    assert running.failed == {"a": "[DECODE_FAILED] No. Do this."}
    assert "ottla: a: [DECODE_FAILED] No. Do this." in capsys.readouterr().err


def test_a_topic_that_cannot_be_started_leaves_the_others_alone() -> None:
    def start(topic: str) -> Any:
        if topic == "a":
            raise ConnectorError("UNKNOWN_TOPIC", "There is no topic a")
        return FakeQuery("", 3)

    for skips in ([], ["UNKNOWN_TOPIC"]):
        running = Landing(start, skips=skips)
        running.run(["a", "b"])
        assert running.rows == 3
        assert running.failed == ({} if skips else {"a": "[UNKNOWN_TOPIC] There is no topic a."})


def test_a_job_without_an_end_starts_a_topic_again(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 10
        return now[0]

    queries = iter([FakeQuery(FAILED), FakeQuery(FAILED), FakeQuery("", 1)])
    running = Landing(lambda _: cast(Any, next(queries)), has_end=False, clock=clock)
    running.run(["a"])
    assert (running.rows, running.failed) == (1, {})
    found = [line for line in capsys.readouterr().out.splitlines() if "again" in line]
    assert found == ["a: starts again in 30 s", "a: starts again in 60 s"]


def test_a_slow_start_of_spark_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    slow = FakeQuery("Python worker failed to connect back.")
    running = landing(slow, slow, FakeQuery("", 1))
    running.run(["a"])
    assert running.rows == 1
    assert capsys.readouterr().out.count("starting again") == 2
    never = landing(*[slow] * 10)
    never.run(["a"])
    assert "failed to connect back" in never.failed["a"]


def test_progress_without_counts() -> None:
    progress = {"batchId": 7, "numInputRows": 2, "durationMs": {}, "observedMetrics": None}
    assert progress_line("t", progress) == "t: batch 7, 2 records in 0.0 s"


def with_columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


class Tables:
    """A Spark session with one table, of this schema."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    @property
    def read(self) -> Tables:
        return self

    def format(self, name: str) -> Tables:
        return self

    def load(self, path: str) -> Tables:
        return self

    def check(self, schema: StructType, **given: Any) -> bool:
        options = LandOptions(("t",), "/tables", **given)
        frame = cast(DataFrame, SimpleNamespace(schema=schema))
        return check_table(cast(SparkSession, self), options, "t", frame)


def test_a_type_that_spark_guesses_from_the_name_of_a_folder_is_no_conflict() -> None:
    found = Tables(with_columns(value=StringType(), id=IntegerType(), active=StringType()))
    rows = with_columns(value=StringType(), id=LongType(), active=BooleanType())
    assert found.check(rows, partition_by=("value.id", "value.active"))
    with pytest.raises(ConnectorError, match="column id is int there and bigint now"):
        found.check(rows, partition_by=("value.active",))
    with pytest.raises(ConnectorError, match="column id is int there and bigint now"):
        found.check(rows, format="delta", partition_by=("value.id",))


class Folders(dict[str, set[str]]):
    """The names in folders of a file system."""

    def check(self, exists: bool = True, **given: Any) -> None:
        options = LandOptions(("t",), "/tables", **given)
        job.check_checkpoint(cast(SparkSession, None), options, "t", exists)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Folders:
    found = Folders()
    monkeypatch.setattr(job, "names_in", lambda _, folder: found.get(folder, set()))
    return found


def test_a_table_whose_checkpoint_is_gone_is_refused(folders: Folders) -> None:
    """Spark's sink would skip the first batches of a new query, with records and all."""
    folders["/tables/t"] = {"_spark_metadata"}
    folders["/tables/t/_spark_metadata"] = {"0", "9.compact"}
    folders["/other/t"] = {"metadata"}
    with pytest.raises(ConnectorError, match=r"not at /tables/_checkpoints/t\. .*--checkpoint to"):
        folders.check()
    folders.check(checkpoint="/other")
    folders.check(format="delta")
    folders["/tables/t/_spark_metadata"].clear()  # of a query that failed before its first batch
    folders.check()


def test_a_checkpoint_whose_table_is_gone_is_refused(folders: Folders) -> None:
    """The new table would have the records only that follow."""
    folders["/tables/_checkpoints/t"] = {"metadata", "commits"}
    folders.check(exists=False)
    folders["/tables/_checkpoints/t/commits"] = {"0", "1"}
    wanted = "delete /tables/_checkpoints/t as well"
    for name in ("parquet", "delta", "iceberg"):
        with pytest.raises(ConnectorError, match=wanted):
            folders.check(exists=False, format=name)
    folders.check(format="iceberg")
    folders["/tables/t"] = {"_delta_log"}
    folders.check(format="delta")
    folders["/tables/t"] = {"_spark_metadata"}  # whose batches had no records, and so no schema
    folders.check(exists=False)


def test_a_table_with_other_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads a part of the rows of a folder with both layouts."""
    folders = {
        "/tables/t": {"_spark_metadata", "date=2026-11-28"},
        "/tables/t/date=2026-11-28": {"hour=3", "hour=4"},
        "/tables/t/date=2026-11-28/hour=3": {"part-0.parquet"},
        "/tables/plain": {"_spark_metadata", "part-0.parquet", ".part-0.parquet.crc"},
        "/tables/new": {"_spark_metadata"},
    }
    monkeypatch.setattr(job, "names_in", lambda _, folder: folders.get(folder, set()))

    def check(topic: str, *columns: str, **given: Any) -> None:
        options = LandOptions((topic,), "/tables", partition_by=columns, **given)
        job.check_layout(cast(SparkSession, None), options, topic)

    check("t", "date", "hour")
    check("plain")
    for topic in ("new", "not-there"):
        check(topic, "date")
        check(topic)
    check("t", format="delta")
    with pytest.raises(ConnectorError, match="by date, hour, not by nothing"):
        check("t")
    with pytest.raises(ConnectorError, match="by date, hour, not by date"):
        check("t", "date")
    with pytest.raises(ConnectorError, match=r"by nothing, not by country.*--partition-by as"):
        check("plain", "value.country")


class JavaError(Py4JJavaError):
    """Without a JVM that has the object."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self)
        self.java_exception = text


def test_an_error_of_java_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for --to s3a://... without the jars of S3."""

    def start(_: object, __: object, topic: str) -> Any:
        if topic == "t":
            raise JavaError("java.lang.RuntimeException: Class S3AFileSystem not found\n\tat org.x")
        return FakeQuery("", 5)

    monkeypatch.setattr(SparkSession, "builder", MagicMock())
    monkeypatch.setattr(job, "start_query", start)
    options = tmp_path / "options.json"
    wanted = "ottla: t: java.lang.RuntimeException: Class S3AFileSystem not found\n"
    for topics, code in ((["t"], 1), (["t", "u"], 3), (["u"], 0)):
        given = {"topics": topics, "to": "s3a://lake/tables", "available_now": True}
        options.write_text(json.dumps(given))
        assert job.main([str(options)]) == code
        text = capsys.readouterr().err
        if code:
            assert text == f"{wanted}ottla: 1 of {len(topics)} topics failed: t\n"


def test_options_of_another_version_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"topics": ["t"], "to": "/tables", "colour": "red"}))
    assert job.main([str(options)]) == 1
    assert capsys.readouterr().err.startswith("ottla: [UNKNOWN_OPTION] The landing job does not")
