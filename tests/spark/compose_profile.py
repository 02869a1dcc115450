"""The services of the compose profile `spark`, as the file has them."""

from __future__ import annotations

from typing import Any

import yaml

from tests.spark.conftest import ROOT


def services() -> dict[str, dict[str, Any]]:
    """By name, with what YAML merges into them."""
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    found: dict[str, dict[str, Any]] = document["services"]
    return found


def job_command(**replaced: str) -> list[str]:
    """The command of the job; a text that is a key of `replaced` becomes its value.

    Keys are the last part of a path or of an address: `spark_submit`, `master`, `package`, `job`,
    `bootstrap` and `checkpoint`.
    """
    command: list[str] = services()["spark-job"]["command"]
    places = {
        "spark_submit": "/opt/spark/bin/spark-submit",
        "master": "spark://spark-master:7077",
        "package": "/package/pyspark_ottla.zip",
        "driver": "spark.driver.host=spark-job",
        "job": "/examples/word_count_stream.py",
        "bootstrap": "broker1:29092,broker2:29092,broker3:29092",
        "checkpoint": "/checkpoints/word-count",
    }
    assert set(places.values()) <= set(command), "the command has changed"
    new = {places[name]: value for name, value in replaced.items()}
    return [new.get(text, text) for text in command]
