"""Subscriptions and assignments on the wire."""

import pytest

from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.errors import ProtocolError
from ottla.protocol.topics import TopicPartition

OWNED = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
FULL = Subscription(["a", "b"], b"data", OWNED, 7, "rack", None)


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        (0, Subscription(["a", "b"], b"data", [])),
        (1, Subscription(["a", "b"], b"data", OWNED)),
        (2, Subscription(["a", "b"], b"data", OWNED, 7)),
        (3, FULL),
        (9, FULL),
    ],
)
def test_every_version_of_a_subscription(version: int, wanted: Subscription) -> None:
    blob = encode_subscription(FULL, version)
    assert blob[:2] == min(version, 3).to_bytes(2, "big")
    assert decode_subscription(blob) == wanted


def test_topics_and_partitions_are_written_in_order() -> None:
    mixed = Subscription(["b", "a"], b"data", OWNED[::-1], 7, "rack")
    assert encode_subscription(mixed) == encode_subscription(FULL)


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_an_assignment(version: int) -> None:
    assignment = Assignment([OWNED[2], OWNED[0], OWNED[1]], b"u")
    assert decode_assignment(encode_assignment(assignment, version)) == assignment
    empty = Assignment([])
    assert decode_assignment(encode_assignment(empty, version)) == empty


def test_later_versions_are_read_as_the_latest_known() -> None:
    blob = b"\0\x09" + encode_subscription(FULL)[2:] + b"new fields"
    assert decode_subscription(memoryview(blob)) == FULL
    later = b"\0\x09" + encode_assignment(Assignment(OWNED))[2:] + b"new fields"
    assert decode_assignment(later) == Assignment(OWNED)


def test_instance_id_comes_from_outside_and_an_empty_rack_is_none() -> None:
    found = decode_subscription(encode_subscription(FULL._replace(rack_id="")), "instance")
    assert found.group_instance_id == "instance"
    assert found.rack_id is None


@pytest.mark.parametrize("blob", [b"", b"\0", b"\0\0", b"\xff\xff\0\0", b"\0\x01\0\0\0\x05"])
def test_what_is_no_blob_is_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(blob)
    with pytest.raises(ProtocolError):
        decode_assignment(blob)
