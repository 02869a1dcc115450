"""Offset JSON: the JVM connector's text, our marks, and what is neither."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import (
    Offsets,
    StreamOffset,
    decode,
    describe_all,
    encode,
    parse_partition_values,
    to_text,
)

topic_names = st.text("abcXYZ019._-", min_size=1, max_size=8)
partitions = st.builds(TopicPartition, topic_names, st.integers(0, 2**31 - 1))
some_offsets = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=8)


def test_text_is_sorted_by_topic_and_number() -> None:
    offsets = {
        TopicPartition("b", 10): 1,
        TopicPartition("b", 9): 2,
        TopicPartition("a", 0): 3,
    }
    assert to_text(offsets) == '{"a":{"0":3},"b":{"9":2,"10":1}}'


@given(some_offsets)
def test_text_comes_back(offsets: Offsets) -> None:
    assert parse_partition_values(to_text(offsets), "o", minimum=0) == offsets


@given(
    some_offsets,
    st.booleans(),
    st.none() | some_offsets,
    st.none() | st.dictionaries(topic_names, topic_names, max_size=3),
)
def test_stream_offsets_come_back(
    offsets: Offsets, fresh: bool, start: Offsets | None, ids: dict[str, str] | None
) -> None:
    position = StreamOffset(offsets, fresh, start, ids)
    assert decode(json.loads(json.dumps(encode(position)))) == position


def test_marks_are_written_only_where_they_are_set() -> None:
    offsets = {TopicPartition("a", 0): 1}
    assert encode(StreamOffset(offsets)) == {"a": {"0": 1}}
    assert encode(StreamOffset(offsets, True, {}, {"a": "x"})) == {
        "a": {"0": 1},
        "@fresh": {},
        "@start {}": {},
        '@ids {"a": "x"}': {},
    }


@pytest.mark.parametrize(
    "foreign", [{"logOffset": 5}, {"a": {"0": "five"}}, {"a": {"0": -1}}, {"@start {": {}}]
)
def test_an_offset_of_another_source_is_noticed(foreign: dict[str, object]) -> None:
    with pytest.raises(ConnectorError, match="none of this source"):
        decode(foreign)  # type: ignore[arg-type] # on purpose: what a wrong checkpoint may hold


def test_long_lists_are_cut_in_messages() -> None:
    many = [TopicPartition("t", number) for number in range(12)]
    assert describe_all(many, limit=2) == "t-0, t-1 and 10 more"
    assert describe_all(many[:1]) == "t-0"
