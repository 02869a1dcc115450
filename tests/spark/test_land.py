"""`ottla spark land` and `ottla spark run` as commands, with a broker and a real Spark.

A landing job is killed with everything that belongs to it and started again; the tables are then
compared with what was sent, row by row.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import SparkSession

from pyspark_ottla.land import job
from pyspark_ottla.land.plan import LandOptions
from tests.doubles.broker_process import BrokerProcess
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.streams import wait_until
from tests.spark.support import Sent, create_topic, write

NewTopicName = Callable[[str], str]
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "country": {"type": "string"}},
}
JAVA = "spark.driver.extraJavaOptions=-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", JAVA]


def environment(work: Path) -> dict[str, str]:
    found = {**os.environ, **spark_environment(work)}
    del found["PYTHONPATH"]
    return found


@contextmanager
def running(work: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a session of its own, with what it starts; killed in the end. Its output is
    in the files `out` and `log`."""
    command = [sys.executable, "-m", "ottla.cli.main", "spark", *arguments]
    with (work / "log").open("ab") as log, (work / "out").open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=work,
            env={**environment(work), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def land(work: Path, *arguments: str) -> tuple[int, str]:
    """The exit code, and what the command printed on both outputs."""
    with running(work, "land", *arguments, *SMALL) as process:
        code = process.wait(300)
    return code, (work / "out").read_text() + (work / "log").read_text()[-6000:]


def test_a_killed_job_continues_and_no_row_is_lost_or_doubled(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    orders, others = new_topic("land"), new_topic("land")
    for topic in (orders, others):
        create_topic(broker.bootstrap, topic, 2)
    countries = (b"fi", b"se")

    def send(topic: str, begin: int, end: int) -> None:
        values = [
            Sent(b'{"id":%d,"country":"%s"}' % (n, countries[n % 2]), partition=n % 2)
            for n in range(begin, end)
        ]
        write(broker.bootstrap, topic, values)

    send(orders, 0, 500)
    send(others, 0, 50)
    tables = tmp_path / "tables"
    common = [orders, others, "--to", str(tables), "--bootstrap", broker.bootstrap]
    common += ["--max-file-records", "30", "--partition-by", "date,value.country"]
    common += ["--decode", "json", "--option", f"value.schema={json.dumps(SCHEMA)}"]
    common += ["--bad-records", "drop"]
    slow = ["--option", "maxOffsetsPerTrigger=100", "--trigger-seconds", "0"]

    def batches(topic: str) -> int:
        return len(list((tables / "_checkpoints" / topic / "commits").glob("[0-9]*")))

    with running(tmp_path, "land", *common, *slow, *SMALL) as process:

        def has_begun() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            return batches(orders) >= 2

        wait_until(has_begun, "the job has committed two batches")
    send(orders, 500, 600)
    write(broker.bootstrap, others, [Sent(b"oops")])
    code, text = land(tmp_path, *common, "--available-now")
    assert code == 0, text
    assert f"{orders}: batch " in text
    assert "1 could not be decoded" in text
    for topic, count in ((orders, 600), (others, 50)):
        rows = spark.read.parquet(str(tables / topic)).collect()
        assert sorted(row.value.id for row in rows) == list(range(count))
        assert {(row.country, row.value.country) for row in rows} == {("fi", "fi"), ("se", "se")}
    files = (tables / orders).glob("date=2023-11-14/country=*/*.parquet")
    assert max(rows_of(file) for file in files) <= 30


def rows_of(file: Path) -> int:
    return int(pyarrow.parquet.ParquetFile(file).metadata.num_rows)


def options(broker: BrokerProcess, topic: str, to: Path, **given: Any) -> LandOptions:
    source = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "value.format": "json",
        "value.schema": json.dumps(given.pop("schema", SCHEMA)),
    }
    return LandOptions((topic,), str(to), available_now=True, source=source, **given)


def test_columns_can_be_added_and_a_type_cannot_change(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("land-changed")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b'{"id":1}')])
    narrow = {"type": "object", "properties": {"id": {"type": "integer"}}}
    assert job.land(spark, options(broker, topic, tmp_path, schema=narrow)).rows == 1
    write(broker.bootstrap, topic, [Sent(b'{"id":2,"country":"fi"}')])
    assert job.land(spark, options(broker, topic, tmp_path)).rows == 1
    table = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / topic))
    rows = {(row.value.id, row.value.country) for row in table.collect()}
    assert rows == {(1, None), (2, "fi")}

    changed = {"type": "object", "properties": {"id": {"type": "string"}}}
    failed = job.land(spark, options(broker, topic, tmp_path, schema=changed)).failed
    assert (
        f"[INVALID_SCHEMA] The table {tmp_path}/{topic} cannot take the records of {topic}: the "
        "column value.id is bigint there and string now."
    ) in failed[topic]


def test_a_record_that_fails_the_job_is_named(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("land-bad")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"oops")])
    failed = job.land(spark, options(broker, topic, tmp_path)).failed
    assert failed[topic].startswith(
        f"[DECODE_FAILED] The value (json) of the record at offset 0 of {topic}-0 is no "
    )
    kept = options(broker, topic, tmp_path, bad_records="keep")
    assert job.land(spark, kept).rows == 1
    [row] = spark.read.parquet(str(tmp_path / topic)).collect()
    assert bytes(row["_corrupt"].value) == b"oops"


def test_text_that_is_none(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic, missing = new_topic("land-text"), new_topic("land-missing")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"fine", b"k"), Sent(b"\xff\xfe", b"k"), Sent(None)])
    source = {"kafka.bootstrap.servers": broker.bootstrap, "value.format": "string"}

    def land(where: str, topics: tuple[str, ...] = (topic,), **given: Any) -> Any:
        to = str(tmp_path / where)
        return job.land(spark, LandOptions(topics, to, available_now=True, source=source, **given))

    assert "DECODE_FAILED" in land("fail").failed[topic]
    landed = land("keep", bad_records="keep", topics=(missing, topic), skip_missing=True)
    assert (landed.rows, landed.failed) == (3, {})
    assert list(land("missing", topics=(missing, topic), bad_records="drop").failed) == [missing]
    rows = spark.read.parquet(str(tmp_path / "keep" / topic)).orderBy("offset").collect()
    assert [row.value for row in rows] == ["fine", None, None]
    assert [row["_corrupt"] is not None for row in rows] == [False, True, False]
    assert bytes(rows[1]["_corrupt"].value) == b"\xff\xfe"
    table = spark.read.parquet(str(tmp_path / "missing" / topic))
    assert sorted(table.columns) == sorted(set(rows[0].asDict()) - {"_corrupt"})
    assert [row.value for row in table.orderBy("offset").collect()] == ["fine", None]


JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
frame = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1])
rows = frame.option("subscribe", sys.argv[2]).load().collect()
assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
print("found", len(rows), __name__, spark.conf.get("spark.app.name"))
sys.exit(5)
"""


def test_run_gives_a_job_the_connector(
    broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("run")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"a"), Sent(b"b")])
    (tmp_path / "job.py").write_text(JOB)
    options = [*SMALL, "--conf", "spark.app.name=mine"]
    with running(tmp_path, "run", *options, "job.py", broker.bootstrap, topic) as process:
        code = process.wait(300)
    text = (tmp_path / "out").read_text()
    assert "found 2 __main__ mine" in text, (tmp_path / "log").read_text()[-3000:]
    assert code == 5
