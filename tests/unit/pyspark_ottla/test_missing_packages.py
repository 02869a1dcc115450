"""An executor whose Python lacks a package: said with the host and the Python, before anything."""

from __future__ import annotations

import sys

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.read.reader import OffsetRangePartition, read_task
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.write.writer import write_rows

BASE = {"kafka.bootstrap.servers": "b:1"}
TEXT = r"MISSING_DEPENDENCY\] The Python of the executor .*python.* lacks a package"


def test_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_ottla.read.task", None)
    options = parse_source_options({**BASE, "subscribe": "t"})
    with pytest.raises(ConnectorError, match=TEXT):
        read_task(options, row_schema(options), OffsetRangePartition("t", 0, 0, 5))


def test_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_ottla.write.writing", None)
    with pytest.raises(ConnectorError, match=TEXT):
        write_rows(parse_sink_options({**BASE, "topic": "t"}), iter([]), None)
