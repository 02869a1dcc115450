"""The Spark job of the demo: lines by package, read from the topic with format("ottla").

    python scripts/demo_spark.py BOOTSTRAP TOPIC WORK_DIRECTORY

Prints one JSON object. All files of Spark and its Java are in the work directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepare_environment(work: Path) -> None:
    """Keeps Java's and Spark's files in `work`; the Python workers use this Python."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(work)
    os.environ["TMPDIR"] = str(work)
    # Java would write its performance counters to /tmp/hsperfdata_<user>.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"
    os.chdir(work)


def main(bootstrap: str, topic: str, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    prepare_environment(work)
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    # A short job does not repay Java's second compiler and parallel garbage collection.
    java = f"-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={work}"
    started = time.perf_counter()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("ottla demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", java)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    ready = time.perf_counter()
    lines = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    package = F.expr("decode(filter(headers, h -> h.key = 'package')[0].value, 'UTF-8')")
    by_package = (
        lines.groupBy(package.alias("package"))
        .agg(
            F.count("*").alias("lines"),
            F.count_distinct("key").alias("modules"),
            F.sum(F.octet_length("value")).alias("text_bytes"),
            F.max(F.octet_length("value")).alias("longest"),
        )
        .collect()
    )
    done = time.perf_counter()
    result = {
        "packages": {row["package"]: list(row)[1:] for row in by_package},
        "start_seconds": ready - started,
        "job_seconds": done - ready,
    }
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve())
