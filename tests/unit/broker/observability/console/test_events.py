"""What the console writes down when the state of the cluster changes."""

from __future__ import annotations

from ottla.broker.cluster.metadata_cache import (
    BrokerMetadata,
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)
from ottla.broker.observability.console import events as cluster_events
from ottla.broker.observability.console.events import ClusterEvents, merged


def partition(
    index: int = 0, leader: int = 1, isr: tuple[int, ...] = (1, 2), epoch: int = 0
) -> PartitionMetadata:
    return PartitionMetadata(index, leader, epoch, list(isr), [1, 2], [], 1, 0)


def topic(name: str, *partitions: PartitionMetadata) -> TopicMetadata:
    return TopicMetadata(name, bytes(16), {each.partition: each for each in partitions})


def snapshot(
    *topics: TopicMetadata, brokers: tuple[int, ...] = (1, 2), controller: int = 1
) -> MetadataSnapshot:
    return MetadataSnapshot(
        {each: BrokerMetadata(each, {}, None) for each in brokers},
        {each.name: each for each in topics},
        {},
        (controller, 1),
    )


def lines(*snapshots: MetadataSnapshot) -> list[tuple[str, str]]:
    """Level and text, the oldest first."""
    events = ClusterEvents()
    for number, each in enumerate(snapshots):
        events.note(each, number)
    return [(row["level"], row["text"]) for row in reversed(events.rows())]


def test_the_first_state_is_no_event() -> None:
    assert lines(snapshot(topic("a", partition()))) == []


def test_brokers_and_controller() -> None:
    assert lines(snapshot(brokers=(1, 2)), snapshot(brokers=(2, 3), controller=2)) == [
        ("INFO", "Controller changed from broker 1 to broker 2"),
        ("INFO", "Broker 3 registered"),
        ("WARNING", "Broker 1 is not registered any more"),
    ]
    assert lines(snapshot(), snapshot(controller=-1)) == [
        ("ERROR", "Controller changed from broker 1 to none")
    ]


def test_topics_and_partitions() -> None:
    before = snapshot(topic("a", partition()), topic("gone", partition()))
    after = snapshot(topic("a", partition(), partition(1)), topic("new", partition()))
    assert lines(before, after) == [
        ("INFO", "Topic a got 1 more partition"),
        ("INFO", "Topic new created with 1 partition"),
        ("INFO", "Topic gone deleted"),
    ]


def test_leaders_and_in_sync_replicas() -> None:
    states = [
        partition(),
        partition(leader=2, isr=(2,)),
        partition(leader=-1, isr=(2,)),
        partition(leader=2, isr=(2, 1), epoch=9),
        partition(leader=2, isr=(1, 2), epoch=10),
        partition(leader=2, isr=(1,), epoch=10),
    ]
    assert lines(*(snapshot(topic("a", state)) for state in states)) == [
        (
            "WARNING",
            "Partition a-0 is led by broker 2, before by broker 1; ISR shrank from 1,2 to 2",
        ),
        ("ERROR", "Partition a-0 has no leader, the last was broker 2"),
        (
            "INFO",
            "Partition a-0 is led by broker 2, before by none; ISR grew from 2 to 1,2",
        ),
        ("WARNING", "ISR of a-0 shrank from 1,2 to 1"),
    ]


def test_what_happened_to_many_partitions_is_one_event() -> None:
    old = snapshot(topic("a", *(partition(index) for index in range(5))))
    new = snapshot(topic("a", *(partition(index, leader=2, isr=(2,)) for index in range(5))))
    assert lines(old, new) == [
        (
            "WARNING",
            "5 partitions are led by broker 2, before by broker 1; ISR shrank from 1,2 to 2 "
            "(a-0, a-1, a-2 and 2 more)",
        )
    ]


def test_a_line_of_several_brokers_is_one_event() -> None:
    def row(broker: int | None, time_ms: int, text: str = "joined") -> dict[str, object]:
        return {"broker": broker, "time_ms": time_ms, "text": text, "level": "INFO", "from": "x"}

    apart = cluster_events.SAME_EVENT_MS + 1
    found = merged(
        [row(1, 0), row(2, apart), row(1, apart + 5), row(2, apart + 6), row(None, apart + 9)]
    )
    assert [(each["time_ms"], each["brokers"], each["count"]) for each in found] == [
        (apart + 9, [], 1),
        (apart + 6, [1, 2], 3),
        (0, [1], 1),
    ]


def test_lines_that_name_different_partitions_are_alike() -> None:
    rows: list[dict[str, object]] = [
        {"broker": 1, "time_ms": number, "text": f"log a-{number} rolled", "level": "INFO",
         "from": "log", "kind": "log %s rolled"}
        for number in range(9)
    ]  # fmt: skip
    found = merged(rows)
    assert [(each["text"], each["alike"]) for each in found] == [
        ("log a-8 rolled", 0),
        ("log a-7 rolled", 0),
        ("log a-6 rolled", 6),
    ]
    error = {**rows[0], "level": "ERROR", "text": "log b-0 rolled"}
    assert "log b-0 rolled" in [each["text"] for each in merged([*rows, error])]


def test_the_lines_of_one_change_and_all_lines_are_bounded() -> None:
    many = cluster_events.MAX_LINES + 7
    old = snapshot(*(topic(f"a{each}", partition()) for each in range(many)))
    new = snapshot(*(topic(f"a{each}", partition(), partition(1)) for each in range(many)))
    found = lines(old, new)
    assert len(found) == cluster_events.MAX_LINES + 1
    assert found[-1] == ("INFO", "7 more changes at the same time")
    rounds = [old, new] * (cluster_events.MAX_EVENTS // cluster_events.MAX_LINES)
    assert len(lines(*rounds)) == cluster_events.MAX_EVENTS
