"""The installed connector in a Spark job that ships a `protocol.py` of its own to the workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.testing import Broker
from tests.installed.builds import must_run
from tests.installed.conftest import Installed
from tests.spark.conftest import spark_environment
from tests.spark.support import Sent, create_topic, write

PROTOCOL = """
def parse(value):
    return "the project's " + value
"""

JOB = """
import json, sys

import pyspark_ottla
from protocol import parse
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

bootstrap, topic, work = sys.argv[1:]
java = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir=" + work
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.sql.warehouse.dir", work)
    .config("spark.driver.extraJavaOptions", java)
    .config("spark.submit.pyFiles", "protocol.py")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
lines = reader.option("subscribe", topic).load().selectExpr("CAST(value AS STRING) AS line")
rows = lines.select(udf(parse)("line").alias("line")).collect()
print(json.dumps([pyspark_ottla.__file__, *sorted(row["line"] for row in rows)]))
spark.stop()
"""


@pytest.mark.spark
def test_a_job_ships_a_module_of_our_name(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text(PROTOCOL)
    (tmp_path / "job.py").write_text(JOB)
    environment = {
        **spark_environment(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "PYSPARK_PYTHON": str(installed.python),
    }
    with Broker() as broker:
        create_topic(broker.bootstrap, "lines")
        write(broker.bootstrap, "lines", [Sent(b"order"), Sent(b"invoice")])
        said = must_run(
            installed.python,
            "job.py",
            broker.bootstrap,
            "lines",
            tmp_path,
            cwd=tmp_path,
            environment=environment,
        )
    [line] = [line for line in said.splitlines() if line.startswith('["')]
    file, *values = json.loads(line)
    assert file.startswith(str(installed.site))
    assert values == ["the project's invoice", "the project's order"]
