"""`make compat-spark`: the connector on the older Sparks that docs/spark.md has a table of.

Each pyspark is downloaded once, without its dependencies, into .cache/spark-versions. What each of
them can do must work, and for the rest it must be said which Spark is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.broker_process import start_broker
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.support import Sent, create_topic, write

VERSIONS = ("4.0.1", "4.1.1", "4.2.0")
NEEDS_4_1 = "UNSUPPORTED_SPARK_VERSION] Writing a stream needs Spark 4.1"
NEEDS_4_2 = "UNSUPPORTED_SPARK_VERSION] The option maxOffsetsPerTrigger needs Spark 4.2"

# The same in all versions.
BATCHES = {"read": 30, "projection": 30, "filter": 5, "write": 10, "write exactly once": 20}
EXPECTED = {
    "4.0.1": {"stream": [30], "restart": [], "limits": NEEDS_4_2, "sink": NEEDS_4_1},
    "4.1.1": {"stream": [30], "restart": [], "limits": NEEDS_4_2, "sink": [30]},
    "4.2.0": {"stream": [30], "restart": [], "limits": [10, 10, 10], "sink": [30]},
}


def pyspark_of(version: str) -> Path:
    """Where that pyspark is, to be put on a path."""
    place = ROOT / ".cache" / "spark-versions" / version
    if not (place / "pyspark").exists():
        partial = place.with_name(f"{version}.partial")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(partial), f"pyspark=={version}"], check=True)
        partial.rename(place)
    return place


@pytest.mark.parametrize("version", VERSIONS)
def test_what_each_spark_can_do(version: str, tmp_path: Path) -> None:
    place = pyspark_of(version)
    with start_broker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "older")
        write(broker.bootstrap, "older", [Sent(b"%d" % number) for number in range(30)])
        environment = {**os.environ, **spark_environment(tmp_path)}
        environment["PYTHONPATH"] = os.pathsep.join((str(place), str(ROOT)))
        environment["SPARK_HOME"] = str(place / "pyspark")
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.older_sparks", broker.bootstrap],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.pop("version") == version
    for step, expected in (BATCHES | EXPECTED[version]).items():
        if isinstance(expected, str):
            assert expected in str(found[step]), step
        else:
            assert found[step] == expected, step


def main(bootstrap: str) -> None:
    """Every step with this process's Spark; prints the result of each."""
    import pyspark
    from pyspark.sql import DataFrame, SparkSession

    with tempfile.TemporaryDirectory() as work:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "768m")
            .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={work}")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")

        def read(topic: str = "older", schema: str | None = None, **options: str) -> DataFrame:
            reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
            reader = reader if schema is None else reader.schema(schema)
            return reader.options(subscribe=topic, **options).load()

        def filtered() -> int:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            try:
                return read().where("offset >= 25").count()
            finally:
                spark.conf.unset("spark.sql.python.filterPushdown.enabled")

        def written(**options: str) -> int:
            frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
            writer = frame.write.format("ottla").mode("append").options(topic="written", **options)
            writer.option("kafka.bootstrap.servers", bootstrap).save()
            return read("written", **{"kafka.isolation.level": "read_committed"}).count()

        def streamed(name: str, sink: str = "noop", **options: str) -> list[int]:
            reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
            reader = reader.options(subscribe="older", startingOffsets="earliest", **options)
            writer = reader.load().select("key", "value").writeStream.format(sink)
            if sink == "ottla":
                writer = writer.option("kafka.bootstrap.servers", bootstrap)
                writer = writer.options(topic="streamed", delivery="exactly-once")
            writer = writer.option("checkpointLocation", f"{work}/{name}")
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination(300)
            rows = [json.loads(found.json)["numInputRows"] for found in query.recentProgress]
            return [count for count in rows if count]

        steps: dict[str, Callable[[], object]] = {
            "version": lambda: pyspark.__version__,
            "read": lambda: read(includeHeaders="true").count(),
            "projection": lambda: len(read(schema="value binary, timestamp timestamp").collect()),
            "filter": filtered,
            "write": written,
            "write exactly once": lambda: written(delivery="exactly-once", writeId="older"),
            "stream": lambda: streamed("one"),
            "restart": lambda: streamed("one"),
            "limits": lambda: streamed("two", maxOffsetsPerTrigger="10"),
            "sink": lambda: streamed("three", "ottla"),
        }
        found: dict[str, object] = {}
        for name, step in steps.items():
            try:
                found[name] = step()
            except Exception as error:  # the test checks its text
                found[name] = str(error)
        spark.stop()
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
