"""Topics out of members' metadata."""

import pytest

from ottla.broker.groups.classic.subscription import subscribed_topics_of
from ottla.protocol.codec import encoder
from ottla.protocol.messages.stored.consumer_protocol import ConsumerProtocolSubscription


def metadata(version: int, *topics: str) -> bytes:
    message = ConsumerProtocolSubscription(topics=list(topics), user_data=b"data")
    body: bytes = encoder(ConsumerProtocolSubscription, version)(message)
    return version.to_bytes(2) + body


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_is_understood(version: int) -> None:
    found = subscribed_topics_of([metadata(version, "a", "b"), metadata(0, "b", "c"), metadata(3)])
    assert found == frozenset("abc")


def test_a_version_of_the_future_is_read_as_far_as_it_is_known() -> None:
    assert subscribed_topics_of([b"\x00\x63" + metadata(0, "a")[2:]]) == frozenset("a")


def test_no_members_read_nothing() -> None:
    assert subscribed_topics_of([]) == frozenset()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff",
        metadata(0, "topic")[:8],
        metadata(0, "topic")[:-9],
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
    ],
)
def test_what_cannot_be_read_makes_the_whole_unknown(damaged: bytes) -> None:
    assert subscribed_topics_of([metadata(0, "a"), damaged]) is None
