from ottla.broker.groups.share.assignor import Assignment, assign
from ottla.protocol.steps import run_at_once

A, B = b"a" * 16, b"b" * 16


def members(*names: str, topics: frozenset[bytes] = frozenset((A,))) -> dict[str, frozenset[bytes]]:
    return dict.fromkeys(names, topics)


def assigned(
    subscriptions: dict[str, frozenset[bytes]], partitions: dict[bytes, list[int]]
) -> dict[str, Assignment]:
    return run_at_once(assign(subscriptions, partitions))


def test_more_partitions_than_members() -> None:
    assert assigned(members("x", "y"), {A: [0, 1, 2]}) == {"x": {A: [0, 2]}, "y": {A: [1]}}


def test_more_members_than_partitions() -> None:
    found = assigned(members("x", "y", "z"), {A: [0, 1]})
    assert found == {"x": {A: [0]}, "y": {A: [1]}, "z": {A: [0]}}


def test_a_topic_begins_with_another_member() -> None:
    found = assigned(members("x", "y", topics=frozenset((A, B))), {A: [0], B: [0]})
    assert {name: sorted(topics) for name, topics in found.items()} == {"x": [A, B], "y": [A, B]}


def test_members_have_only_what_they_subscribe_to() -> None:
    subscriptions = {"x": frozenset((A,)), "y": frozenset((B,)), "z": frozenset[bytes]()}
    assert assigned(subscriptions, {A: [0], B: [0, 1]}) == {
        "x": {A: [0]},
        "y": {B: [0, 1]},
        "z": {},
    }


def test_no_partition_yet() -> None:
    assert assigned(members("x"), {A: []}) == {"x": {}}
