"""`ottla spark land` and `ottla spark run` as commands, with a broker and a real Spark.

A landing job is killed with everything that belongs to it and started again; the tables are then
compared with what was sent, row by row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
def running(work: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, with what it starts; killed in the end."""
    command = [sys.executable, "-m", "ottla.cli.main", "spark", *arguments]
    process = subprocess.Popen(
        command,
        cwd=work,
        env={**environment(work), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=(work / "log").open("a"),
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


def land(work: Path, *arguments: str) -> tuple[int, str]:
    """The exit code, and what the command printed on both outputs."""
    with running(work, "land", *arguments, *SMALL) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        return process.wait(300), text + (work / "log").read_text()[-6000:]


def test_a_killed_job_continues_and_no_row_is_lost_or_doubled(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    orders, others = new_topic("land"), new_topic("land")
    for topic in (orders, others):
        create_topic(broker.bootstrap, topic, 2)
    countries = ("fi", "se")

    def send(begin: int, end: int) -> None:
        for topic in (orders, others):
            values = [
                Sent(b'{"id":%d,"country":"%s"}' % (n, countries[n % 2].encode()), partition=n % 2)
                for n in range(begin, end)
            ]
            write(broker.bootstrap, topic, values)

    send(0, 600)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    tables = tmp_path / "tables"
    common = [orders, others, "--to", str(tables), "--bootstrap", broker.bootstrap]
    common += ["--option", "maxOffsetsPerTrigger=100", "--max-file-records", "30"]
    common += ["--decode", "json", "--option", f"value.schema={schema.read_text()}"]
    common += ["--partition-by", "date,value.country", "--bad-records", "drop"]

    def batches(topic: str) -> int:
        return len(list((tables / "_checkpoints" / topic / "commits").glob("[0-9]*")))

    with running(tmp_path, "land", *common, "--trigger-seconds", "0", *SMALL) as process:

        def has_begun() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            return batches(orders) >= 2

        wait_until(has_begun, "the job has committed two batches")
    send(600, 700)
    write(broker.bootstrap, orders, [Sent(b"oops")])
    code, text = land(tmp_path, *common, "--available-now")
    assert code == 0, text
    assert f"{orders}: batch " in text
    assert "1 could not be decoded" in text
    for topic in (orders, others):
        rows = spark.read.parquet(str(tables / topic)).collect()
        assert sorted(row.value.id for row in rows) == list(range(700))
        assert {(row.country, row.value.country) for row in rows} == {("fi", "fi"), ("se", "se")}
        files = list((tables / topic).glob("date=2023-11-14/country=*/*.parquet"))
        assert files
        sizes = [spark.read.parquet(str(file)).count() for file in files[:3]]
        assert max(sizes) <= 30


def test_a_change_of_a_type_is_refused_before_anything_is_written(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    topic = new_topic("land-changed")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b'{"id":1}')])
    table = tmp_path / "tables" / topic
    spark.sql("SELECT named_struct('id', 'text') AS value").write.parquet(str(table))
    code, text = land(
        tmp_path, topic, "--to", str(tmp_path / "tables"), "--bootstrap", broker.bootstrap,
        "--available-now", "--decode", "json", "--option", f"value.schema={json.dumps(SCHEMA)}",
    )  # fmt: skip
    assert code == 1
    assert (
        f"ottla: [INVALID_SCHEMA] The table {table} cannot take the records of {topic}: the column "
        "value.id is string there and bigint now."
    ) in text
    assert spark.read.parquet(str(table)).count() == 1


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
        assert process.stdout is not None
        text = process.stdout.read()
        code = process.wait(120)
    assert "found 2 __main__ mine" in text, (tmp_path / "log").read_text()[-3000:]
    assert code == 5
