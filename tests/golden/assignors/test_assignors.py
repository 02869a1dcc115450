"""Groups that went through rebalances under Kafka's own assignors: ours decide the same.

A line has the partition counts, and for each member its subscription as it goes over the wire, its
instance id, the partitions it was given, and its assignment as it goes over the wire.
"""

import gzip
import json
from typing import Any

import pytest

from ottla.protocol.assignors import ASSIGNORS
from ottla.protocol.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.steps import run_at_once
from tests.golden.assignors.regenerate import VECTORS


def read_vectors() -> list[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="ascii") as lines:
        return [json.loads(line) for line in lines]


ALL = read_vectors()


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_decisions_are_kafkas(name: str) -> None:
    vectors = [vector for vector in ALL if vector["assignor"] == name]
    assert len(vectors) > 200
    for vector in vectors:
        subscriptions = {
            member: decode_subscription(bytes.fromhex(row[0]), row[1])
            for member, row in vector["members"].items()
        }
        found = run_at_once(ASSIGNORS[name](vector["counts"], subscriptions))
        wanted = {member: sorted(map(tuple, row[2])) for member, row in vector["members"].items()}
        assert {member: sorted(mine) for member, mine in found.items()} == wanted, vector


def test_blobs_are_kafkas_byte_for_byte() -> None:
    for vector in ALL:
        for subscription, _, partitions, assignment in vector["members"].values():
            blob = bytes.fromhex(subscription)
            assert encode_subscription(decode_subscription(blob)) == blob
            given = decode_assignment(bytes.fromhex(assignment))
            assert sorted(given.partitions) == sorted(map(tuple, partitions))
            assert encode_assignment(given).hex() == assignment
