"""The order of Java's hash tables."""

import pytest

from ottla.protocol.java_order import first_of_hash_set, hash_map_order, string_hash
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition


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
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_string_hash(text: str, expected: int) -> None:
    assert string_hash(text) == expected


def test_small_maps_go_by_the_last_bits() -> None:
    assert run_at_once(hash_map_order(["c", "a", "b"])) == ["a", "b", "c"]
    # "p" is 112, whose last four bits are those of "@" (64) and of "0" (48).
    assert run_at_once(hash_map_order(["p", "a", "@", "0"])) == ["p", "@", "0", "a"]


def test_maps_grow_with_their_keys() -> None:
    names = [chr(code) for code in range(97, 97 + 13)]  # more than 12: 32 buckets
    assert run_at_once(hash_map_order(["@", *names])) == ["@", *names]
    assert run_at_once(hash_map_order(["@", *names[:5]])) == ["@", *names[:5]]
    assert run_at_once(hash_map_order(["p", "@", *names]))[:2] == ["@", "a"]


def test_sets_of_partitions() -> None:
    partitions = [TopicPartition("t", number) for number in range(5)]
    # hash = 31 * (31 + partition) + 116, without the higher bits.
    buckets = {found: (31 * (31 + found.partition) + 116) & 15 for found in partitions}
    assert first_of_hash_set(partitions) == min(partitions, key=buckets.__getitem__)
