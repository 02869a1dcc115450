from __future__ import annotations

import pytest

from ottla.broker.replication.partition import Partition
from ottla.broker.replication.read_replica import NO_PREFERENCE, RackAwareReplicaSelector
from tests.doubles.replicas import Replicas


class Scene(Replicas):
    """Broker 1 in rack a leads; 2 and 3 are in rack b and have everything."""

    def __init__(self) -> None:
        super().__init__()
        self.racks = {1: "a", 2: "b", 3: "b"}
        self.led: Partition = self.lead(replicas=[1, 2, 3])
        self.append(5)
        for broker_id in (2, 3):
            self.copied(broker_id, 5)
        self.selector = RackAwareReplicaSelector(self.metadata)

    def copied(self, broker_id: int, end: int, start: int = 0) -> None:
        self.led.followers[broker_id].record_fetch(end, start, 5, int(self.clock.monotonic()))

    def choose(self, rack: str, offset: int = 0) -> int:
        return self.selector.choose(self.led, rack, offset)


def test_a_replica_in_the_readers_rack() -> None:
    scene = Scene()
    assert scene.choose("b") in (2, 3)
    scene.append(1)
    scene.copied(3, 6)
    assert scene.choose("b") == 3, "the one that is furthest along"


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_others_read_from_the_leader(rack: str) -> None:
    assert Scene().choose(rack) == NO_PREFERENCE


def test_a_replica_outside_of_the_isr_is_not_read() -> None:
    """It may have the offset and then stay behind for ever."""
    scene = Scene()
    scene.led.set_isr(frozenset((1, 2)))
    scene.copied(3, 5)
    scene.append(1)
    scene.copied(3, 6)
    assert scene.choose("b") == 2
    scene.led.set_isr(frozenset((1,)))
    assert scene.choose("b") == NO_PREFERENCE


def test_no_client_is_sent_to_where_the_records_are_not() -> None:
    scene = Scene()
    assert scene.choose("b", 6) == NO_PREFERENCE
    scene.copied(2, 5, start=3)
    scene.copied(3, 2)
    assert scene.choose("b", 1) == 3
    assert scene.choose("b", 4) == 2
    scene.copied(3, 2, start=2)
    assert scene.choose("b", 0) == NO_PREFERENCE
