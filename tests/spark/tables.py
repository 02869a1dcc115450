"""`make compat-spark-tables`: `ottla spark land` into Iceberg and Delta, on a Spark that has jars.

Downloads the pysparks into .cache/spark-versions and the jars by Spark's own --packages; minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.broker_process import start_broker
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.older_sparks import pyspark_of
from tests.spark.support import Sent, create_topic, write

# The newest Spark that each format has a jar for, and the one before.
CHOICES = (("iceberg", "4.1.1"), ("delta", "4.1.1"), ("delta", "4.2.0"))
# Limits need Spark 4.2.
LIMITED = "4.2.0"
FIRST = {"type": "object", "properties": {"id": {"type": "integer"}}}
SECOND = {"type": "object", "properties": {"id": {"type": "integer"}, "c": {"type": "string"}}}
READERS = {
    "iceberg": 'spark.table("ottla_tables.`orders`")',
    "delta": 'spark.read.format("delta").load(sys.argv[1] + "/orders")',
}
READER = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = {reader}.collect()
print(json.dumps(sorted((row.value.id, row.value.c, str(row.date)) for row in rows)))
"""


@pytest.mark.parametrize(("chosen", "version"), CHOICES)
def test_land(chosen: str, version: str, tmp_path: Path) -> None:
    place = pyspark_of(version)
    environment = {**os.environ, **spark_environment(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join((str(place), str(ROOT)))
    environment["SPARK_HOME"] = str(place / "pyspark")
    tables = tmp_path / "tables"
    small = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    small += ["--conf", "spark.sql.session.timeZone=UTC"]
    limits = ["--option", "maxOffsetsPerTrigger=8"] if version == LIMITED else []

    def ottla(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", "spark", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def land(bootstrap: str, schema: object) -> str:
        return ottla(
            "land", "orders", "--to", str(tables), "--format", chosen, "--available-now",
            "--bootstrap", bootstrap, "--partition-by", "date", "--decode", "json",
            "--option", f"value.schema={json.dumps(schema)}", *limits, *small,
        )  # fmt: skip

    with start_broker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "orders", 2)
        sent = [Sent(b'{"id":%d}' % n, partition=n % 2) for n in range(20)]
        write(broker.bootstrap, "orders", sent)
        assert "20 records" in land(broker.bootstrap, FIRST)
        if limits:
            commits = list((tables / "orders" / "_delta_log").glob("*.json"))
            assert len(commits) == 3, "batches of 8, 8 and 4 records"
        write(broker.bootstrap, "orders", [Sent(b'{"id":20,"c":"x"}')])
        assert "1 records" in land(broker.bootstrap, SECOND)
        assert "0 records" in land(broker.bootstrap, SECOND)
    (tmp_path / "read.py").write_text(READER.format(reader=READERS[chosen]))
    catalog = ["org.apache.iceberg.spark.SparkCatalog", "hadoop", str(tables)]
    names = ["ottla_tables", "ottla_tables.type", "ottla_tables.warehouse"]
    for name, value in zip(names, catalog, strict=True):
        small += ["--conf", f"spark.sql.catalog.{name}={value}"]
    rows = json.loads(
        ottla("run", "--with", chosen, *small, "read.py", str(tables)).splitlines()[-1]
    )
    expected = [[n, None, "2023-11-14"] for n in range(20)] + [[20, "x", "2023-11-14"]]
    assert rows == expected
