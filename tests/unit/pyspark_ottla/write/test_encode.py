"""Encoded rows come back from the record reader; keys go where Java's clients send them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.partitioner import partition_for_key
from ottla.protocol.records.builder import assemble_batch
from ottla.protocol.records.reader import read_records
from pyspark_ottla.write.encode import Rows, Section, batch_starts, encode_rows
from pyspark_ottla.write.partitioning import KEY_BYTES_TOGETHER_MAX, Partitioner

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)

content = st.none() | st.binary(max_size=200)
headers = st.none() | st.lists(st.tuples(st.text(max_size=4), content), max_size=3)
row = st.tuples(st.integers(0, 1 << 42), content, content, headers)


def to_rows(some: list[tuple], *, with_headers: bool = True) -> Rows:
    made = [
        None if item[3] is None else [{"key": k, "value": v} for k, v in item[3]] for item in some
    ]
    return Rows(
        pa.array([item[1] for item in some], pa.binary()),
        pa.array([item[2] for item in some], pa.binary()),
        pa.array(made, HEADERS_TYPE) if with_headers else None,
        np.array([item[0] for item in some], np.int64),
        np.arange(len(some)),
    )


def decode(sections: list[Section]) -> list[tuple]:
    found = []
    for section in sections:
        data = assemble_batch(
            bytes(section.payload),
            base_offset=len(found),
            last_offset_delta=section.record_count - 1,
            base_timestamp=section.base_timestamp,
            max_timestamp=section.max_timestamp,
            record_count=section.record_count,
            attributes=0,
        )
        records = list(read_records(data))
        assert [record.offset for record in records] == section.rows.tolist()
        assert section.max_timestamp == max(record.timestamp for record in records)
        found += records
    return [(r.timestamp, r.key, r.value, r.headers) for r in found]


@given(st.lists(row, max_size=30), st.integers(1, 2000))
@settings(max_examples=150, deadline=None)
def test_rows_come_back(some: list[tuple], bytes_max: int) -> None:
    sections = list(encode_rows(to_rows(some), bytes_max))
    assert decode(sections) == [(*item[:3], item[3] or []) for item in some]
    assert all(len(s.payload) <= bytes_max or s.record_count == 1 for s in sections)


def test_no_headers_column_and_slices_of_larger_arrays() -> None:
    some = [(5, b"k%d" % number, b"v" * number, None) for number in range(10)]
    whole = to_rows(some, with_headers=False)
    part = Rows(whole.key[3:7], whole.value[3:7], None, whole.timestamps[3:7], np.arange(4))
    assert decode(list(encode_rows(part, 1000))) == [(*item[:3], []) for item in some[3:7]]


def test_large_types_are_the_same_bytes() -> None:
    """Those of spark.sql.execution.arrow.useLargeVarTypes."""
    some = [(5, b"k", b"v", [("h", b"1"), ("i", None)]), (6, None, b"w", None)]
    rows = to_rows(some)
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    rows = rows._replace(headers=rows.headers.cast(large))
    assert decode(list(encode_rows(rows, 1000))) == decode(list(encode_rows(to_rows(some), 1000)))


def test_large_and_small_numbers_of_every_size() -> None:
    some = [(number, b"x" * (1 << shift), b"", None) for shift, number in enumerate(range(18))]
    some += [(1 << shift, None, None, None) for shift in range(62)]
    assert decode(list(encode_rows(to_rows(some), 1 << 30))) == [(*i[:3], []) for i in some]


def test_batches_start_where_the_last_is_full() -> None:
    sizes = np.array([4, 4, 4, 20, 1, 1])
    assert batch_starts(sizes, 8).tolist() == [0, 2, 3, 4]
    assert batch_starts(sizes, 1000).tolist() == [0]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_keys_go_where_java_sends_them(keys: list[bytes], count: int) -> None:
    keys.append(keys[0] * (KEY_BYTES_TOGETHER_MAX + 1))
    array = pa.array([b"in front", *keys])[1:]
    chosen = Partitioner(100).choose("t", count, array, None, np.ones(len(keys), np.int64))
    assert chosen.tolist() == [partition_for_key(key, count) for key in keys]


def test_a_given_partition_wins_and_null_keys_stay_in_runs() -> None:
    partitioner = Partitioner(10, seed=1)
    keys = pa.array([None, b"key", None, None, None], pa.binary())
    given_ones = pa.array([3, 2, None, None, None], pa.int32())
    sizes = np.full(5, 5)
    chosen = partitioner.choose("t", 4, keys, given_ones, sizes).tolist()
    assert chosen[:2] == [3, 2]
    assert chosen[2] == chosen[3] != chosen[4]
    again = partitioner.choose("t", 4, None, None, sizes[:2]).tolist()
    assert again[0] not in (chosen[4],)


@pytest.mark.parametrize("count", [1, 3])
def test_without_keys_every_partition_gets_its_share(count: int) -> None:
    partitioner = Partitioner(100)
    seen = set()
    for _ in range(count):
        seen |= set(partitioner.choose("t", count, None, None, np.full(10, 10)).tolist())
    assert seen == set(range(count))
