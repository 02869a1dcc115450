"""An executor whose Python lacks a package: the error names host, Python and package."""

from __future__ import annotations

import sys

import pytest

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import ZSTD
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.read import task
from pyspark_ottla.read.fetch import FetchedData
from pyspark_ottla.read.reader import OffsetRangePartition, read_task
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.write.writer import write_rows
from tests.doubles.codec_libraries import ARROW, NATIVE, hidden
from tests.unit.pyspark_ottla.write.test_producing import ScriptedClient, producer, section

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


CODEC_TEXT = (
    r"MISSING_DEPENDENCY\] Records (of t-3 from offset 0 on|for t-3) need the compression "
    r"codec zstd, for which the Python of .* \(.*python.*\) has no library\. "
    r"Install the package cramjam there, or a pyarrow that was built with zstd\.$"
)


def test_reading_a_codec_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_source_options({**BASE, "subscribe": "t"})
    data = build_batch([(1000, None, b"value", None)], codec=ZSTD)
    fetched = FetchedData(0, memoryview(data), [])
    monkeypatch.setattr(task, "_responses", lambda *_: iter([fetched]))
    wanted = OffsetRange(TopicPartition("t", 3), 0, 1)
    assert sum(batch.num_rows for batch in task.read_range(options, row_schema(options), wanted))
    with hidden(*NATIVE, ARROW), pytest.raises(ConnectorError, match=CODEC_TEXT):
        list(task.read_range(options, row_schema(options), wanted))


def test_writing_a_codec_without_a_library() -> None:
    with hidden(*NATIVE, ARROW):
        sending = producer(ScriptedClient(), compression_type="zstd")
        sending.add(TopicPartition("t", 3), section())
        with pytest.raises(ConnectorError, match=CODEC_TEXT):
            sending.finish()
