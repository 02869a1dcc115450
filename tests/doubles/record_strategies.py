"""Hypothesis strategies for records of every magic."""

from hypothesis import strategies as st

from ottla.protocol.records.record import NewRecord, Record

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

# Sizes around the edges where varints grow.
payloads = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.sampled_from([62, 63, 64, 65, 127, 128, 8190, 8192, 9000]).map(lambda size: b"\x81" * size),
)
header_lists = st.lists(
    st.tuples(st.text(max_size=12), st.one_of(st.none(), st.binary(max_size=70))), max_size=3
)
timestamps = st.one_of(
    st.integers(1_600_000_000_000, 1_600_000_000_200),
    st.integers(-1, 1 << 45),
    INT64,
)


def new_records(*, with_headers: bool = True) -> st.SearchStrategy[list[NewRecord]]:
    """What ``build_batch`` takes: at least one record, sometimes enough for two-byte deltas."""
    headers = header_lists if with_headers else st.just([])
    record = st.tuples(timestamps, payloads, payloads, headers)
    few = st.lists(record, min_size=1, max_size=12)
    many = st.tuples(few, st.integers(1, 40)).map(lambda pair: pair[0] * pair[1])
    return st.one_of(few, few, many)


def as_rows(
    records: list[NewRecord], base_offset: int = 0, timestamp_type: int = 0
) -> list[Record]:
    """What a reader is to make of them."""
    return [
        Record(base_offset + index, timestamp, timestamp_type, key, value, headers or [])
        for index, (timestamp, key, value, headers) in enumerate(records)
    ]
