"""Columns and Arrow batches against the record reader that reads one by one."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.batch import BatchHeader, patch_base_offset, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import CorruptRecordError, InvalidRecordError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import NewRecord, Record
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.read import columns as columns_module
from pyspark_ottla.read.arrow import HEADER_ROUNDS, BatchBuilder, headers_array
from pyspark_ottla.read.columns import Columns, read_columns

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
PARTITION = TopicPartition("words", 3)


def builder(
    schema: pa.Schema = SCHEMA,
    *,
    value_format: str = "binary",
    null_on_error: bool = False,
    rows_max: int = 1000,
    bytes_max: int = 1 << 20,
) -> BatchBuilder:
    return BatchBuilder(
        schema,
        PARTITION,
        value_format=value_format,
        null_on_error=null_on_error,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )


def read(
    data: bytes, start: int = 0, end: int = 1 << 62, *, position: int = 0, check: bool = True
) -> Iterator[Columns]:
    return read_columns(
        memoryview(data)[position:],
        start=start,
        end=end,
        skip=lambda data, position, header: header.is_control,
        check_crcs=check,
        decompressed_bytes_max=1 << 26,
    )


def rows(data: bytes, start: int = 0, end: int = 1 << 62, position: int = 0) -> list[tuple]:
    found = []
    for part in read(data, start, end, position=position):
        for batch in builder().build(part):
            micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
            fields = batch.to_pydict()
            headers = [[(h["key"], h["value"]) for h in some or ()] for some in fields["headers"]]
            found += zip(
                fields["offset"],
                [micro // 1000 for micro in micros],
                fields["timestampType"],
                fields["key"],
                fields["value"],
                headers,
                strict=True,
            )
    return found


def expected(data: bytes, start: int = 0, end: int = 1 << 62) -> list[tuple]:
    return [tuple(record) for record in read_records(data) if start <= record.offset < end]


def batch(records: list[NewRecord], base_offset: int, **options: int | bool) -> bytes:
    return bytes(build_batch(records, base_offset=base_offset, **options))


content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), content), max_size=4)
timestamps = st.integers(0, 1 << 42)
records = st.lists(st.tuples(timestamps, content, content, headers), min_size=1, max_size=8)
batches = st.lists(
    st.tuples(records, st.integers(0, 4), st.integers(0, 1), st.booleans()), min_size=1, max_size=6
)


@given(batches, st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_the_same_as_reading_one_by_one(
    described: list[tuple[list[NewRecord], int, int, bool]], start: int, size: int
) -> None:
    data, offset = b"", 0
    for some, codec, timestamp_type, gap in described:
        data += batch(some, offset, codec=codec, timestamp_type=timestamp_type)
        offset += len(some) + 3 * gap
    assert rows(data) == expected(data)
    assert rows(data, start, start + size) == expected(data, start, start + size)
    assert rows(b"in front" + data, position=8) == expected(data)


@given(records)
@settings(max_examples=30, deadline=None)
def test_small_groups_change_nothing(some: list[NewRecord]) -> None:
    data = b"".join(
        batch(some, base, codec=codec) for base, codec in [(0, 0), (10, 1), (20, 0), (30, 3)]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "GROUP_BYTES", 1)
        assert rows(data) == expected(data)


def test_old_message_formats_between_new_ones() -> None:
    plain: list[NewRecord] = [(1_000, b"k", b"v", None), (2_000, None, b"", None)]
    old = [Record(offset, 1_000, 0, b"k", None, []) for offset in (2, 3)]
    data = batch(plain, 0) + build_message_set(old, magic=1, codec=1) + batch(plain, 4)
    assert rows(data) == expected(data)
    assert [row[0] for row in rows(data)] == [0, 1, 2, 3, 4, 5]


def test_control_batches_and_a_torn_end_are_left_out() -> None:
    one: list[NewRecord] = [(5, b"k", b"v", None)]
    marker = batch([(5, b"\0\0\0\1", b"\0\0\0\0\0\0", None)], 1, control=True, producer_id=7)
    data = batch(one, 0) + marker + batch(one, 2) + batch(one, 3)[:40]
    assert [row[0] for row in rows(data)] == [0, 2]


def test_a_wrong_checksum_is_noticed_by_default() -> None:
    data = bytearray(batch([(5, b"key", b"value", None)], 0))
    data[-3] ^= 1
    with pytest.raises(CorruptRecordError, match="stored CRC"):
        list(read(bytes(data)))
    assert len(list(read(bytes(data), check=False))) == 1


def test_a_batch_that_lies_about_its_records_is_refused() -> None:
    data = bytearray(batch([(5, b"key", b"value", None), (6, None, None, None)], 40))
    data[60] = 1  # the count of records
    with pytest.raises(InvalidRecordError, match="offset 40"):
        list(read(bytes(data), check=False))


@given(st.binary(max_size=60), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_random_bytes_fail_cleanly_or_stay_inside(body: bytes, count: int) -> None:
    """Whatever the bytes are: an error of ours, or columns that lie within the data."""
    head = bytearray(batch([(5, b"key", b"value", None)], 0)[:61])
    head[8:12] = (49 + len(body)).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    data = bytes(head) + body
    try:
        for part in read(data, check=False):
            assert (part.value_start + part.value_length <= len(data)).all()
            assert (part.key_start >= 61).all()
            list(builder().build(part))
    except (InvalidRecordError, ConnectorError):
        return


def test_batches_close_at_rows_or_bytes() -> None:
    data = batch([(5, None, b"x" * 100, None)] * 10, 0)
    [part] = read(data)
    assert [b.num_rows for b in builder(rows_max=4).build(part)] == [4, 4, 2]
    sizes = [b.num_rows for b in builder(bytes_max=350).build(part)]
    assert sum(sizes) == 10
    assert max(sizes) == 3
    assert [b.num_rows for b in builder(bytes_max=1).build(part)] == [1] * 10


def test_many_headers_on_one_record() -> None:
    many = [(f"h{number}", b"%d" % number) for number in range(HEADER_ROUNDS + 20)]
    data = batch([(5, b"", b"", many), (5, b"", b"", many[:3]), (5, b"", b"", [])], 0)
    assert rows(data) == expected(data)


def test_header_names_that_are_no_text_are_replaced() -> None:
    data = batch([(5, b"", b"", [("ab", b"c")])], 0).replace(b"ab", b"\xff\xfe")
    [part] = read(data, check=False)
    assert headers_array(part, HEADERS_TYPE).to_pylist() == [
        [{"key": "\ufffd\ufffd", "value": b"c"}]
    ]


def test_a_chosen_subset_in_any_order() -> None:
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    [part] = read(batch([(5, b"k", b"v", None)], 9))
    [made] = builder(schema).build(part)
    assert made.schema.equals(schema)
    assert made.to_pylist() == [{"offset": 9, "value": b"v"}]


TEXT_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])


def test_text_columns() -> None:
    [part] = read(batch([(5, "k\u00e9y".encode(), None, None)], 0))
    [made] = builder(TEXT_SCHEMA).build(part)
    assert made.to_pylist() == [{"key": "k\u00e9y", "value": None}]


def test_bytes_that_are_no_text_are_an_error_or_null() -> None:
    [part] = read(batch([(5, b"ok", b"ok", None), (5, b"\xff", b"ok", None)], 7))
    with pytest.raises(ConnectorError, match="offset 8 of words-3 has a key that is no UTF-8"):
        list(builder(TEXT_SCHEMA).build(part))
    [made] = builder(TEXT_SCHEMA, null_on_error=True).build(part)
    assert made.column("key").to_pylist() == ["ok", None]


STRIP_SCHEMA = pa.schema([("value", pa.binary()), ("value_schema_id", pa.int32())])


def test_schema_registry_prefix_is_taken_off() -> None:
    values = [b"\0\0\1\2\3body", None, b"\0\0\0\0\7"]
    [part] = read(batch([(5, None, value, None) for value in values], 0))
    [made] = builder(STRIP_SCHEMA, value_format="confluent-strip").build(part)
    assert made.column("value").to_pylist() == [b"body", None, b""]
    assert made.column("value_schema_id").to_pylist() == [0x010203, None, 7]


@pytest.mark.parametrize("bare", [b"", b"\0\0\0\1", b"\1\0\0\0\1x"])
def test_a_value_without_the_prefix_is_an_error_or_null(bare: bytes) -> None:
    [part] = read(batch([(5, None, bare, None)], 0))
    with pytest.raises(ConnectorError, match="without a schema id in front"):
        list(builder(STRIP_SCHEMA, value_format="confluent-strip").build(part))
    made = builder(STRIP_SCHEMA, value_format="confluent-strip", null_on_error=True).build(part)
    assert next(made).to_pylist() == [{"value": None, "value_schema_id": None}]


def test_a_timestamp_beyond_sparks_range_is_an_error_or_null() -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC"))])
    [part] = read(batch([(1 << 60, None, b"", None), (1000, None, b"", None)], 0))
    with pytest.raises(ConnectorError, match="no Spark timestamp can hold"):
        list(builder(schema).build(part))
    [made] = builder(schema, null_on_error=True).build(part)
    assert made.column(0).cast(pa.int64()).to_pylist() == [None, 1_000_000]


def test_skip_is_asked_with_the_current_batch() -> None:
    data = bytearray(batch([(5, b"k", b"v", None)], 0) * 2)
    patch_base_offset(data, len(data) // 2, 1, 0)
    asked: list[int] = []

    def skip(data: memoryview, position: int, header: BatchHeader) -> bool:
        assert read_header(data, position) == header
        asked.append(header.base_offset)
        return header.base_offset == 0

    parts = read_columns(
        memoryview(data),
        start=0,
        end=10,
        skip=skip,
        check_crcs=True,
        decompressed_bytes_max=100,
    )
    assert [part.offsets.tolist() for part in parts] == [[1]]
    assert asked == [0, 1]


@pytest.mark.parametrize("timestamp", [-(1 << 63), (1 << 63) - 1])
def test_timestamps_at_the_ends_of_64_bits_are_impossible(timestamp: int) -> None:
    [columns] = read(build_batch([(timestamp, None, b"x", None)]))
    with pytest.raises(ConnectorError, match=f"timestamp {timestamp}, which no Spark"):
        list(builder().build(columns))
    [batch] = builder(null_on_error=True).build(columns)
    assert batch.column("timestamp").to_pylist() == [None]
