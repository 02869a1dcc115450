"""Where a key lives."""

import pytest

from ottla.broker.coordination.ports import java_string_hash, partition_for_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96_354),
        ("console-consumer-84505", 164_981_533),
        ("polygenelubricants", -(2**31)),
        ("\u00e9", 233),
        ("\u65e5\u672c", 835_047),
        ("\U0001f600", 1_772_899),
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_negative_hashes_count_by_their_size() -> None:
    assert java_string_hash("orders") < 0
    assert partition_for_key("orders", 50) == 31


def test_the_smallest_number_has_no_positive_counterpart() -> None:
    assert partition_for_key("polygenelubricants", 50) == 0
