"""The user data of sticky members."""

import pytest

from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.sticky_assignment import (
    NO_GENERATION,
    MemberState,
    encode_cooperative_state,
    encode_sticky_state,
    read_cooperative_state,
    read_sticky_state,
)
from ottla.protocol.topics import TopicPartition

OWNED = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]


def test_sticky_state_with_and_without_a_generation() -> None:
    blob = encode_sticky_state(OWNED, 5)
    assert read_sticky_state(Subscription([], blob)) == MemberState(OWNED, 5)
    assert read_sticky_state(Subscription([], blob[:-4])) == MemberState(OWNED, None)


@pytest.mark.parametrize("blob", [None, b""])
def test_new_members_have_nothing(blob: bytes | None) -> None:
    assert read_sticky_state(Subscription([], blob)) == MemberState([], None)


BLOB = encode_sticky_state(OWNED, 5)


@pytest.mark.parametrize(
    "blob",
    [
        *(BLOB[:size] for size in range(1, len(BLOB) - 8)),
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x01\0\x01a\x7f\xff\xff\xff\0\0\0\0",
        b"\0\0\0\x01\xff\xff\0\0\0\0",
        b"\0\0\0\x01\0\x01\xff\0\0\0\0",
    ],
)
def test_what_cannot_be_read_counts_as_nothing(blob: bytes) -> None:
    assert read_sticky_state(Subscription([], blob)) == MemberState([], NO_GENERATION)


def test_cooperative_state_is_in_the_subscription_or_before_in_the_user_data() -> None:
    newest = Subscription([], encode_cooperative_state(3), OWNED, 9)
    assert read_cooperative_state(newest) == MemberState(OWNED, 9)
    older = Subscription([], encode_cooperative_state(3), OWNED)
    assert read_cooperative_state(older) == MemberState(OWNED, 3)
    assert read_cooperative_state(Subscription([], None, OWNED)) == MemberState(OWNED, None)
    broken = Subscription([], b"xx", OWNED)
    assert read_cooperative_state(broken) == MemberState(OWNED, NO_GENERATION)
