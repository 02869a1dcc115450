"""Assignments of members, as far as they are those of consumers."""

from __future__ import annotations

import pytest

from ottla.protocol.consumer_protocol import assigned_partitions

# Version 0: orders 0 and 2; no user data.
ASSIGNMENT = bytes.fromhex("0000 00000001 0006") + b"orders" + bytes.fromhex(
    "00000002 00000000 00000002 ffffffff"
)  # fmt: skip


def test_the_assignment_of_a_consumer() -> None:
    assert [str(each) for each in assigned_partitions(ASSIGNMENT)] == ["orders-0", "orders-2"]
    # A newer version appends fields.
    assert assigned_partitions(b"\x00\x63" + ASSIGNMENT[2:] + b"more")[0].topic == "orders"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff", b"\x00\x01\x00", ASSIGNMENT[:-9]])
def test_what_is_no_assignment_of_a_consumer(data: bytes) -> None:
    assert assigned_partitions(data) == []
