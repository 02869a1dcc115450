"""Positions in topics: their JSON, their order, and the extra marks in a streaming checkpoint.

An offset is always the next one to read. The JSON is that of Spark's JVM connector,
`{"topicA":{"0":23,"1":345}}` with topics and partitions sorted, so that a checkpoint can be carried
from one to the other. Spark compares the text, hence the order matters. Keys that begin with `@`
(no topic can) are marks of ours, present only where they are needed. To the JVM connector each is a
topic without a partition, which it ignores; so the content of a mark is in the key itself, as JSON:

  "@fresh": {}                  the position was resolved just now and is in no journal yet
  "@start {topic: ...}": {}     in the end of the first batch: the start that it was planned with
  "@ids {topic: id}": {}        the topics' ids, unless the option trackTopicIds is off

Pure functions; no input or output.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors

# What JSON can hold; the offsets of Spark's streaming API are such dicts.
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Offsets: TypeAlias = dict[TopicPartition, int]

LATEST = -1
EARLIEST = -2
OFFSET_MAX = (1 << 63) - 1

FRESH = "@fresh"
START = "@start"
IDS = "@ids"

EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
EXAMPLE_ASSIGN = '{"topicA":[0,1],"topicB":[2,4]}'


class StreamOffset(NamedTuple):
    """One streaming position with its marks."""

    offsets: Offsets
    fresh: bool = False
    start: Offsets | None = None
    topic_ids: dict[str, str] | None = None


class OffsetRange(NamedTuple):
    """Offsets `start` (included) to `end` (not included) of one partition.

    The topic id, where it is known, is that of the topic at the time of planning.
    """

    partition: TopicPartition
    start: int
    end: int
    topic_id: str | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


def describe(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def describe_all(partitions: Iterable[TopicPartition], limit: int = 10) -> str:
    """At most `limit` names: a message about a thousand partitions stays readable."""
    names = [describe(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _invalid(option: str, text: str, what: str, example: str) -> errors.ConnectorError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return errors.ConnectorError(
        errors.INVALID_OPTION, f"The option {option} {what}: {shown}", f"Expected {example}"
    )


def _load_object(text: str, option: str, example: str) -> dict[str, Json]:
    def no_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        seen: dict[str, Json] = {}
        for key, value in pairs:
            if key in seen:
                raise _invalid(option, text, f"names {key!r} twice", example)
            seen[key] = value
        return seen

    try:
        loaded = json.loads(text, object_pairs_hook=no_repeats)
    except (ValueError, RecursionError) as error:
        raise _invalid(option, text, f"is not valid JSON ({error})", example) from None
    if not isinstance(loaded, dict):
        raise _invalid(option, text, "is not a JSON object", example)
    return loaded


def _partition_number(value: object) -> int | None:
    """A partition id from a JSON key or number; None if it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        return None
    return value


def parse_partition_values(
    text: str, option: str, *, minimum: int, example: str = EXAMPLE
) -> Offsets:
    """`{"topic":{"0":number}}` as a flat dict; numbers must be at least `minimum`."""
    found: Offsets = {}
    for topic, numbers in _load_object(text, option, example).items():
        if not isinstance(numbers, dict):
            raise _invalid(option, text, f"has no partitions under topic {topic!r}", example)
        for key, value in numbers.items():
            partition = _partition_number(key)
            if partition is None:
                raise _invalid(option, text, f"has {key!r}, which is no partition", example)
            if isinstance(value, bool) or not isinstance(value, int):
                raise _invalid(option, text, f"has {value!r}, which is no whole number", example)
            if not minimum <= value <= OFFSET_MAX:
                raise _invalid(option, text, f"has {value}, which is out of range", example)
            found[TopicPartition(topic, partition)] = value
    return found


def parse_assignment(text: str, option: str = "assign") -> frozenset[TopicPartition]:
    """`{"topic":[0,1]}` as a set."""
    found: set[TopicPartition] = set()
    for topic, numbers in _load_object(text, option, EXAMPLE_ASSIGN).items():
        if not isinstance(numbers, list) or not numbers:
            what = f"has no list of partitions under topic {topic!r}"
            raise _invalid(option, text, what, EXAMPLE_ASSIGN)
        for value in numbers:
            partition = None if isinstance(value, str) else _partition_number(value)
            if partition is None:
                what = f"has {value!r}, which is no partition"
                raise _invalid(option, text, what, EXAMPLE_ASSIGN)
            found.add(TopicPartition(topic, partition))
    if not found:
        raise _invalid(option, text, "names no partition", EXAMPLE_ASSIGN)
    return frozenset(found)


def to_json_dict(offsets: Mapping[TopicPartition, int]) -> dict[str, Json]:
    """Nested and in canonical order: topics by name, partitions by number."""
    nested: dict[str, Json] = {}
    for topic, partition in sorted(offsets):
        numbers = nested.setdefault(topic, {})
        assert isinstance(numbers, dict)
        numbers[str(partition)] = offsets[TopicPartition(topic, partition)]
    return nested


def to_text(offsets: Mapping[TopicPartition, int]) -> str:
    """The JVM connector's text, byte for byte."""
    return json.dumps(to_json_dict(offsets), separators=(",", ":"), ensure_ascii=False)


def encode(position: StreamOffset) -> dict[str, Json]:
    """The dict to hand to Spark, marks last and only those that are set."""
    encoded = to_json_dict(position.offsets)
    if position.fresh:
        encoded[FRESH] = {}
    if position.start is not None:
        encoded[f"{START} {to_text(position.start)}"] = {}
    if position.topic_ids is not None:
        encoded[f"{IDS} {json.dumps(position.topic_ids, sort_keys=True)}"] = {}
    return encoded


def decode(value: Mapping[str, Json]) -> StreamOffset:
    """What Spark hands back, from our own journal or from the JVM connector's.

    Raises ConnectorError for anything else, so that a checkpoint of another source is noticed.
    """
    marks: dict[str, Json] = {}
    for key in value:
        if key.startswith("@"):
            name, _, content = key.partition(" ")
            marks[name] = _load_mark(content, value) if content else True
    topics = {key: part for key, part in value.items() if not key.startswith("@")}
    return StreamOffset(
        _decode_offsets(topics),
        FRESH in marks,
        _decode_offsets(marks[START]) if START in marks else None,
        _decode_ids(marks[IDS]) if IDS in marks else None,
    )


def _foreign(value: object) -> errors.ConnectorError:
    return errors.ConnectorError(
        errors.INVALID_OFFSETS,
        f"The checkpoint holds an offset that is none of this source: {value}",
        "Was the checkpoint written by another source? Use a new checkpointLocation",
    )


def _load_mark(content: str, value: object) -> Json:
    try:
        loaded: Json = json.loads(content)
    except (ValueError, RecursionError):
        raise _foreign(value) from None
    return loaded


def _decode_offsets(value: Json) -> Offsets:
    try:
        return parse_partition_values(json.dumps(value), "offset", minimum=0)
    except errors.ConnectorError:
        raise _foreign(value) from None


def _decode_ids(value: Json) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {topic: str(topic_id) for topic, topic_id in value.items()}
