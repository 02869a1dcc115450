"""The examples do what they say, run twice as their users run them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from pyspark_ottla.lag import LagListener, NamedLag, lag
from tests.doubles.broker_process import BrokerProcess
from tests.spark.conftest import ROOT
from tests.spark.streams import run_to_end, wait_until
from tests.spark.support import Sent, create_topic, load, write

NewTopicName = Callable[[str], str]


def example(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_word_count_stream(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    module = example("word_count_stream")
    lines, counts = new_topic("lines"), new_topic("counts")
    create_topic(broker.bootstrap, lines, 2)
    create_topic(broker.bootstrap, counts, 2, {"cleanup.policy": "compact"})
    options = module.parse(
        ["--bootstrap", broker.bootstrap, "--lines", lines, "--counts", counts, "--available-now"]
        + ["--checkpoint", str(tmp_path / "checkpoint")]
    )
    seen: list[NamedLag] = []
    listener = LagListener(seen.append)
    spark.streams.addListener(listener)
    write(broker.bootstrap, lines, [Sent(b"To be, or not to be:"), Sent(b"that is", partition=1)])
    query = run_to_end(module.start(spark, options))
    assert lag(query).partitions == {lines: {0: 0, 1: 0}}
    write(broker.bootstrap, lines, [Sent(b"the question: be")])
    run_to_end(module.start(spark, options))
    wait_until(lambda: len(seen) >= 2, "the listener to hear of both runs")
    spark.streams.removeListener(listener)
    newest: dict[str, int] = {}
    for row in load(spark, broker.bootstrap, subscribe=counts).orderBy("offset").collect():
        found = json.loads(row["value"])
        assert bytes(row["key"]).decode() == found["word"]
        newest[found["word"]] = found["count"]
    expected = {"to": 2, "be": 3, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}
    assert newest == expected


def test_refresh_table(
    spark: SparkSession, broker: BrokerProcess, new_topic: NewTopicName, tmp_path: Path
) -> None:
    module = example("refresh_table")
    topic = new_topic("events")
    create_topic(broker.bootstrap, topic, 2)
    options = module.parse(
        ["--bootstrap", broker.bootstrap, "--topic", topic, "--table", str(tmp_path / "table")]
        + ["--checkpoint", str(tmp_path / "checkpoint"), "--group", topic]
    )
    write(broker.bootstrap, topic, [Sent(b"%d" % n, partition=n % 2) for n in range(10)])
    assert module.refresh(spark, options) == 10
    write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(10, 13)])
    assert module.refresh(spark, options) == 3
    assert module.refresh(spark, options) == 0
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(13))
    assert {str(row["day"]) for row in rows} == {"2023-11-14"}
