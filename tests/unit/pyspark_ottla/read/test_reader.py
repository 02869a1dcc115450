"""The batches of a task with several ranges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read import task
from pyspark_ottla.read.reader import OffsetRangePartition, SharedPartition, read_task
from pyspark_ottla.read.schema import row_schema


def options(**given: str) -> SourceOptions:
    return parse_source_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"} | given)


@pytest.mark.parametrize(
    ("given", "rows"),
    [({}, [30]), ({"batchRows": "20"}, [20, 10]), ({"batchBytes": "50"}, [5] * 6)],
)
def test_small_batches_come_together(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], rows: list[int]
) -> None:
    def read_range(_: Any, __: Any, wanted: Any, *___: Any) -> Any:
        yield pa.record_batch({"offset": pa.array(range(wanted.start, wanted.end), pa.int64())})

    monkeypatch.setattr(task, "read_range", read_range)
    chosen = options(**given)
    parts = [OffsetRangePartition("t", n, 5 * n, 5 * n + 5) for n in range(6)]
    batches = list(read_task(chosen, row_schema(chosen), SharedPartition(parts)))
    assert [batch.num_rows for batch in batches] == rows
    assert [n for batch in batches for n in batch.column("offset").to_pylist()] == [*range(30)]


def test_a_shared_task_without_records_has_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "read_range", lambda *_: iter(()))
    chosen = options()
    parts = [OffsetRangePartition("t", n, 0, 5) for n in range(6)]
    assert list(read_task(chosen, row_schema(chosen), SharedPartition(parts))) == []
