"""Where a key lives."""

from ottla.broker.coordination.ports import partition_for_key
from ottla.protocol.java_order import string_hash


def test_negative_hashes_count_by_their_size() -> None:
    assert string_hash("orders") < 0
    assert partition_for_key("orders", 50) == 31


def test_the_smallest_number_has_no_positive_counterpart() -> None:
    assert partition_for_key("polygenelubricants", 50) == 0
