"""Rows of partitions under their topics, and partitions that do not exist."""

from ottla.broker.handlers.common.topic_rows import TopicRows, split_known
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.handlers.fake_metadata import Metadata


def test_rows_come_by_topic_in_the_order_of_the_request() -> None:
    rows: TopicRows[str] = TopicRows()
    for topic, index, row in (("u", 1, "a"), ("t", 0, "b"), ("u", 0, "c")):
        rows.add(TopicPartition(topic, index), row)
    assert list(rows.items()) == [("u", [(1, "a"), (0, "c")]), ("t", [(0, "b")])]


def test_unknown_partitions_get_their_error_and_the_last_of_two_counts() -> None:
    unknown: TopicRows[int] = TopicRows()
    known = split_known(
        Metadata(t=2),
        [
            (TopicPartition("t", 0), "first"),
            (TopicPartition("t", 2), "no such partition"),
            (TopicPartition("t", 0), "second"),
            (TopicPartition("gone", 0), "no such topic"),
        ],
        unknown,
    )
    assert known == {TopicPartition("t", 0): "second"}
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(unknown.items()) == [("t", [(2, code)]), ("gone", [(0, code)])]
