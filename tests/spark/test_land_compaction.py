"""`ottla spark land --compact`: the small files of a table become few, and no record is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.land import compaction, job
from pyspark_ottla.land.compaction import KEEP_SECONDS, Files, ParquetCompaction
from pyspark_ottla.land.plan import LandOptions
from tests.doubles.broker_process import BrokerProcess
from tests.spark.support import Sent, create_topic, write

NewTopicName = Callable[[str], str]
FOLDERS = ("date=2026-01-01/hour=6", "date=2026-01-02/hour=7", "date=a%3Ab c/hour=7")
SMALL_FILES = 18


class Interrupted(Exception):
    """The job was killed."""


def make_table(
    spark: SparkSession,
    table: Path,
    folders: Sequence[str] = FOLDERS,
    small_files: int = SMALL_FILES,
) -> list[int]:
    """A table as Spark's sink leaves it, with many small files in each folder. Its ids."""
    entries, ids = [], set[int]()
    files = Files(spark, str(table))
    for folder in folders:
        (table / folder).mkdir(parents=True)
        for number in range(small_files):
            columns: dict[str, Any] = {"id": [len(ids), len(ids) + 1]}
            if number % 2:
                columns["added"] = ["x", None]
            ids.update(columns["id"])
            path = table / folder / f"part-{number:05}.snappy.parquet"
            pyarrow.parquet.write_table(pa.table(columns), path)
            entries.append(files.entry(path.as_uri()).text)
    lone = table / "date=2026-01-03/hour=1" / "part-00000.snappy.parquet"
    lone.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"id": [len(ids)]}), lone)
    entries.append(files.entry(lone.as_uri()).text)
    # A batch that the log lists in a file of its own.
    late = table / folders[0] / "part-late.snappy.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [len(ids) + 1]}), late)
    (table / "_spark_metadata").mkdir()
    (table / "_spark_metadata" / "9.compact").write_text("\n".join(["v1", *entries]))
    (table / "_spark_metadata" / "10").write_text(f"v1\n{files.entry(late.as_uri()).text}")
    return sorted(ids | {len(ids), len(ids) + 1})


def read(spark: SparkSession, table: Path) -> list[int]:
    frame = spark.read.option("mergeSchema", "true").parquet(str(table))
    return sorted(row.id for row in frame.collect())


def listed(table: Path) -> list[int]:
    """The ids that a reader of Spark's log finds, without the time that Spark takes."""
    ids = []
    for log in (table / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            path = unquote(urlsplit(json.loads(line)["path"]).path)
            ids += pyarrow.parquet.ParquetFile(path).read(["id"])["id"].to_pylist()
    return sorted(ids)


def data_files(table: Path) -> list[Path]:
    aside = table / "_compaction"
    return [path for path in table.rglob("*.parquet") if not path.is_relative_to(aside)]


def test_small_files_are_joined_and_others_stay(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "a table"
    ids = make_table(spark, table)
    assert read(spark, table) == ids
    now = [1_000_000.0]

    def run() -> tuple[int, int]:
        return ParquetCompaction(spark, str(table), 1_000_000, lambda: now[0]).run()

    assert run() == (3 * SMALL_FILES, 3)
    assert read(spark, table) == ids
    assert len(data_files(table)) == 3 + 2
    assert len(list(table.rglob("_compaction/**/*.parquet"))) == 3 * SMALL_FILES
    assert run() == (0, 0)
    # The replaced files stay for a while, and never come back.
    now[0] += KEEP_SECONDS
    assert run() == (0, 0)
    assert list(table.rglob("_compaction/**/*.parquet")) == []
    assert read(spark, table) == ids
    [row] = spark.read.parquet(str(table)).where("id = 2").collect()
    assert (str(row["date"]), row["hour"]) == ("2026-01-01", 6)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_it_is_killed_at_each_step(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Each operation on the file system is the last one, once with and once without its effect."""
    kinds = ("write", "move", "delete")
    monkeypatch.setattr(compaction, "SMALL_FILES_MIN", 4)
    for last in range(100):
        table = tmp_path / str(last)
        ids = make_table(spark, table, FOLDERS[:1], 4)
        count = [0]
        with monkeypatch.context() as patches:
            for kind in kinds:
                patches.setattr(Files, kind, interrupted(getattr(Files, kind), count, last, done))
            try:
                ParquetCompaction(spark, str(table), 1_000_000).run()
                ended = True
            except Interrupted:
                ended = False
        assert listed(table) == ids, last
        ParquetCompaction(spark, str(table), 1_000_000).run()
        assert listed(table) == ids, last
        assert len(data_files(table)) == 3, last
        if ended:
            break
    assert last > 8


def interrupted(
    method: Callable[..., None], count: list[int], last: int, done: bool
) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        count[0] += 1
        if count[0] <= last or done:
            method(*arguments)
        if count[0] > last:
            raise Interrupted

    return call


def test_a_log_of_another_kind_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    ids = make_table(spark, tmp_path)
    log = tmp_path / "_spark_metadata" / "9.compact"
    text = log.read_text()
    log.write_text(text.replace("v1", "v2", 1))
    with pytest.raises(ConnectorError, match="has version v2"):
        ParquetCompaction(spark, str(tmp_path), 1_000_000).run()
    log.write_text(text.replace('"add"', '"delete"', 1))
    with pytest.raises(ConnectorError, match="has an entry that --compact does not know"):
        ParquetCompaction(spark, str(tmp_path), 1_000_000).run()
    log.write_text(text)
    assert read(spark, tmp_path) == ids


def test_a_landed_table_goes_on(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("land-compact")
    create_topic(broker.bootstrap, topic, 2)
    source = {"kafka.bootstrap.servers": broker.bootstrap, "maxOffsetsPerTrigger": "20"}
    options = LandOptions((topic,), str(tmp_path), available_now=True, source=source, compacts=True)
    for run in range(2):
        sent = [Sent(b"%d" % n, partition=n % 2) for n in range(220 * run, 220 * (run + 1))]
        write(broker.bootstrap, topic, sent)
        landed = job.land(spark, options)
        assert (landed.rows, landed.failed) == (220, {})
        rows = spark.read.parquet(str(tmp_path / topic)).collect()
        assert sorted(int(bytes(row.value)) for row in rows) == list(range(220 * (run + 1)))
    names = [path.name for path in (tmp_path / topic).glob("*.parquet")]
    assert len([name for name in names if name.startswith("compacted-")]) == 1
    log = max(
        (tmp_path / topic / "_spark_metadata").glob("*.compact"), key=lambda path: int(path.stem)
    )
    listed = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
    assert sum("compacted-" in path for path in listed) == 1
