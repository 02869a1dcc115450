"""Arrow arrays without what makes the start of a Python worker slow."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ottla.read.arrays import gathered, lists, numbers, repeated_text, truths


def test_elements_at_indices() -> None:
    array = pa.array([b"a", b"bc", b"", b"\xff"], pa.binary())
    indices = pa.array([2, None, 1], pa.int32())
    assert gathered(array, indices, pa.binary()).to_pylist() == [b"", None, b"bc"]
    text = gathered(array, indices, pa.string())
    assert (text.type, text.to_pylist()) == (pa.string(), ["", None, "bc"])
    with pytest.raises(pa.ArrowInvalid):
        gathered(array, pa.array([3], pa.int32()), pa.string())


def test_numbers_lists_and_text() -> None:
    values = np.array([1, 2, 3], np.int64)
    null = np.array([False, True, False])
    entries = numbers(values, pa.int64(), null=null)
    assert entries.to_pylist() == [1, None, 3]
    found = lists(np.array([0, 2, 2, 3], np.int32), entries, pa.list_(pa.int64()), null)
    assert found.to_pylist() == [[1, None], None, [3]]
    assert truths(null).to_pylist() == [False, True, False]
    assert repeated_text("ü", 2).to_pylist() == ["ü", "ü"]


TASK = """
import json, sys
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.read import task
from pyspark_ottla.read.fetch import FetchedData
from pyspark_ottla.read.schema import row_schema
options = parse_source_options(
    {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "includeHeaders": "true"}
)
data = build_batch([(1000, b"key", b"value", [("h", b"1")])])
task._responses = lambda *_: iter([FetchedData(0, memoryview(data), [])])
wanted = OffsetRange(TopicPartition("t", 0), 0, 1)
assert sum(batch.num_rows for batch in task.read_range(options, row_schema(options), wanted)) == 1
print(json.dumps([name for name in ("ssl", "pandas", "pyarrow.compute") if name in sys.modules]))
"""


def test_a_task_imports_nothing_slow() -> None:
    done = subprocess.run([sys.executable, "-c", TASK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
