"""The small form of `make tiered-large`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.tiered_large import Size, run

pytestmark = pytest.mark.spark


def test_a_topic_that_is_larger_than_the_local_disk(spark: SparkSession, tmp_path: Path) -> None:
    size = Size(records=2 << 10, partitions=2, segment_bytes=128 << 10, local_bytes=256 << 10)
    reports: list[str] = []
    run(tmp_path, size, lambda: spark, reports.append, with_stream=False)
    assert len(reports) == 4
