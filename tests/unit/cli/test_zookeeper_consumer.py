"""The consumer of Kafka 0.8: registration, sharing, offsets, and what changes them."""

import json
from collections.abc import Iterator

import pytest

from ottla.cli.output import Failure
from ottla.cli.zookeeper_consumer import (
    RANGE,
    ROUND_ROBIN,
    UnequalSubscriptions,
    ZookeeperConsumer,
    assign,
)
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition
from tests.doubles.memory_tree import MemoryTree, MemoryZooKeeper

# The sharing.


def shares(owners: dict[TopicPartition, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for (topic, index), owner in sorted(owners.items()):
        found.setdefault(owner, []).append(f"{topic}{index}")
    return found


def test_range_gives_stretches_topic_by_topic() -> None:
    threads = {"t": ["c2-0", "c1-0", "c1-1"], "u": ["c2-0"]}
    owners = assign(RANGE, threads, {"t": range(10), "u": [1, 0]})
    assert shares(owners) == {
        "c1-0": ["t0", "t1", "t2", "t3"],
        "c1-1": ["t4", "t5", "t6"],
        "c2-0": ["t7", "t8", "t9", "u0", "u1"],
    }


def test_range_leaves_members_without_and_topics_without() -> None:
    assert shares(assign(RANGE, {"t": ["a-0", "b-0"], "u": []}, {"t": [0], "u": [0]})) == {
        "a-0": ["t0"]
    }


def test_round_robin_deals_all_partitions_in_the_order_of_their_hashes() -> None:
    threads = {"t": ["b-0", "a-0"], "u": ["a-0", "b-0"]}
    owners = assign(ROUND_ROBIN, threads, {"t": range(3), "u": range(2)})
    # "[t,0]" to "[t,2]" and "[u,0]", "[u,1]" hash to ascending numbers.
    assert shares(owners) == {"a-0": ["t0", "t2", "u1"], "b-0": ["t1", "u0"]}
    assert assign(ROUND_ROBIN, {}, {}) == {}


def test_round_robin_needs_equal_subscriptions() -> None:
    with pytest.raises(UnequalSubscriptions):
        assign(ROUND_ROBIN, {"t": ["a-0"], "u": ["a-0", "b-0"]}, {"t": [0], "u": [0]})


# The members.


class Log:
    """Partitions with ten records each; `ends` moves an end."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self.first = 0

    def first_offset(self, partition: TopicPartition) -> int:
        return self.first

    def end_offset(self, partition: TopicPartition) -> int:
        return self.ends.get(partition, 10)

    def fetch(
        self, positions: dict[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, Record]]:
        for partition in list(positions):
            while positions[partition] < self.end_offset(partition):
                offset = positions[partition]
                positions[partition] += 1
                yield partition, Record(offset, 0, 0, None, b"%d" % offset, [])


class World:
    """One ZooKeeper with a topic `t` of four partitions, and its consumers."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.zookeeper.put("/brokers/ids/0", b"{}")
        self.set_partitions(4)
        self.log = Log()
        self.trees: dict[str, MemoryTree] = {}

    def set_partitions(self, count: int) -> None:
        data = {"version": 1, "partitions": {str(index): [0] for index in range(count)}}
        self.zookeeper.put("/brokers/topics/t", json.dumps(data).encode())

    def consumer(self, name: str, **options: object) -> ZookeeperConsumer:
        tree = self.trees[name] = self.zookeeper.session()
        options.setdefault("backoff_seconds", 0.01)
        options.setdefault("from_beginning", True)
        made = ZookeeperConsumer(
            tree,
            self.log,
            "g",
            ["t"],
            consumer_id=name,
            **options,  # type: ignore[arg-type]
        )
        made.start()
        return made

    def settle(self, *consumers: ZookeeperConsumer) -> None:
        """Polls all members until no rebalance is needed; that takes some rounds, because
        one has to give a partition back before the other can have it."""
        for _ in range(4 * len(consumers)):
            for consumer in consumers:
                consumer.poll()

    def owners(self) -> dict[int, str]:
        prefix = "/consumers/g/owners/t/"
        return {
            int(path.removeprefix(prefix)): data.decode()
            for path, data in self.zookeeper.nodes.items()
            if path.startswith(prefix)
        }

    def offset(self, partition: int) -> bytes | None:
        return self.zookeeper.nodes.get(f"/consumers/g/offsets/t/{partition}")


def indexes(consumer: ZookeeperConsumer) -> list[int]:
    return sorted(partition.partition for partition in consumer.positions)


def test_a_lone_member_registers_and_owns_everything() -> None:
    world = World()
    consumer = world.consumer("c")
    registered = json.loads(world.zookeeper.nodes["/consumers/g/ids/c"])
    assert registered.pop("timestamp").isdigit()
    assert registered == {"version": 1, "subscription": {"t": 1}, "pattern": "static"}
    assert world.owners() == dict.fromkeys(range(4), "c-0")
    assert len(consumer.poll()) == 40


def test_offsets_are_decimal_text_and_the_next_to_read() -> None:
    world = World()
    consumer = world.consumer("c")
    consumer.poll()
    assert world.offset(0) is None
    consumer.commit()
    assert [world.offset(index) for index in range(4)] == [b"10"] * 4
    consumer.close()
    assert world.owners() == {}
    assert "/consumers/g/ids/c" not in world.zookeeper.nodes
    world.log.ends[TopicPartition("t", 2)] = 13
    again = world.consumer("c2")
    assert [record.offset for _, record in again.poll()] == [10, 11, 12]


@pytest.mark.parametrize(
    ("from_beginning", "stored", "start"),
    [
        (True, None, 3),
        (False, None, 10),
        (True, b"7", 7),
        (False, b"11", 10),
        (True, b"2", 3),
        (True, b"nonsense", 3),
    ],
)
def test_where_reading_starts(from_beginning: bool, stored: bytes | None, start: int) -> None:
    world = World()
    world.set_partitions(1)
    world.log.first = 3
    if stored is not None:
        world.zookeeper.put("/consumers/g/offsets/t/0", stored)
    consumer = world.consumer("c", from_beginning=from_beginning)
    assert consumer.positions == {TopicPartition("t", 0): start}


def test_members_share_and_take_over() -> None:
    world = World()
    first = world.consumer("a")
    first.poll()
    with pytest.raises(Failure):  # the first one does not poll, so it releases nothing
        world.consumer("late", max_retries=2)
    world.trees["late"].close()
    patient = _join(world, "b", first)
    assert indexes(first) == [0, 1]
    assert indexes(patient) == [2, 3]
    assert [world.offset(index) for index in (2, 3)] == [b"10", b"10"]
    assert patient.poll() == []
    first.close()
    world.settle(patient)
    assert indexes(patient) == [0, 1, 2, 3]
    assert patient.poll() == []


def _join(world: World, name: str, *others: ZookeeperConsumer) -> ZookeeperConsumer:
    """Starts a member while the others continue polling."""
    tree = world.trees[name] = world.zookeeper.session()
    joining = ZookeeperConsumer(
        tree, world.log, "g", ["t"], consumer_id=name, from_beginning=True, backoff_seconds=0.01
    )
    _wait_for(joining, *others)
    joining.start()
    world.settle(joining, *others)
    return joining


def _wait_for(consumer: ZookeeperConsumer, *others: ZookeeperConsumer) -> None:
    """While this one waits for partitions, the others get their turn."""
    consumer._changed.wait = lambda timeout=None: bool(  # type: ignore[method-assign]
        [other.poll() for other in others]
    )


def test_a_killed_members_partitions_are_taken_over_from_its_last_commit() -> None:
    world = World()
    first = world.consumer("a")
    second = _join(world, "b", first)
    second.poll()
    world.log.ends = {TopicPartition("t", index): 12 for index in range(4)}
    assert len(second.poll()) == 4
    world.trees["b"].close()
    records = [record.offset for _ in range(4) for _, record in first.poll()]
    assert indexes(first) == [0, 1, 2, 3]
    assert sorted(records).count(10) == 4  # the two of each that it read and did not commit


def test_where_to_start_is_looked_up_after_the_claim() -> None:
    """A former owner commits right before it releases a partition: an earlier offset is stale."""
    world = World()
    claimed = []

    def first_offset(partition: TopicPartition) -> int:
        claimed.append(partition.partition in world.owners())
        return 0

    world.log.first_offset = first_offset  # type: ignore[method-assign]  # the moment is the test
    world.consumer("c")
    assert claimed == [True] * 4


def test_new_partitions_are_shared() -> None:
    world = World()
    consumer = world.consumer("a")
    world.set_partitions(6)
    consumer.poll()
    assert indexes(consumer) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("data", [b"", b'{"parti', b"[]", b"{}", b'{"partitions": {"a": [0]}}'])
def test_a_damaged_topic_is_said(data: bytes) -> None:
    world = World()
    world.zookeeper.put("/brokers/topics/t", data)
    with pytest.raises(Failure, match="the partitions of t in ZooKeeper are damaged"):
        world.consumer("a")


def test_a_topic_that_is_not_there_yet() -> None:
    world = World()
    world.zookeeper.remove("/brokers/topics/t")
    consumer = world.consumer("a")
    assert indexes(consumer) == []
    world.set_partitions(2)
    consumer.poll()
    assert indexes(consumer) == [0, 1]


def test_after_a_lost_session_the_member_joins_again() -> None:
    world = World()
    first = world.consumer("a")
    second = _join(world, "b", first)
    _wait_for(first, second)
    world.trees["a"].expire()
    assert "/consumers/g/ids/a" not in world.zookeeper.nodes
    world.settle(second, first)
    assert "/consumers/g/ids/a" in world.zookeeper.nodes
    assert sorted(indexes(first) + indexes(second)) == [0, 1, 2, 3]
    assert len(world.owners()) == 4


def test_partitions_that_another_owner_keeps_fail_the_rebalance() -> None:
    world = World()
    world.zookeeper.put("/consumers/g/owners/t/2", b"other-0")
    with pytest.raises(Failure, match="4 tries"):
        world.consumer("a")
    assert world.owners() == {2: "other-0"}


@pytest.mark.parametrize(
    ("subscription", "pattern", "shared"),
    [
        ({"t": 1}, "static", True),
        ({"t": 3}, "static", True),
        ({"u": 1}, "static", False),
        ({"t|x.*": 1}, "white_list", True),
        ({"x,y": 1}, "white_list", False),
        ({"x.*": 1}, "black_list", True),
        ({"t": 1}, "black_list", False),
    ],
)
def test_members_written_by_others_are_understood(
    subscription: dict[str, int], pattern: str, shared: bool
) -> None:
    world = World()
    data = {"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1"}
    world.zookeeper.put("/consumers/g/ids/z", json.dumps(data).encode())
    consumer = world.consumer("a")
    assert (indexes(consumer) != [0, 1, 2, 3]) == shared


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"subscription": 5}', b"\xff"])
def test_members_that_cannot_be_read_are_none(data: bytes) -> None:
    world = World()
    world.zookeeper.put("/consumers/g/ids/z", data)
    assert indexes(world.consumer("a")) == [0, 1, 2, 3]


def test_two_members_with_one_id() -> None:
    world = World()
    world.consumer("a")
    with pytest.raises(Failure, match="another member has this id"):
        world.consumer("a")


def test_unequal_subscriptions_are_named() -> None:
    world = World()
    world.consumer("a", strategy=ROUND_ROBIN)
    tree = world.zookeeper.session()
    other = ZookeeperConsumer(
        tree, world.log, "g", ["t", "u"], consumer_id="b", strategy=ROUND_ROBIN
    )
    with pytest.raises(Failure, match="same topics"):
        other.start()


def test_records_of_an_interrupted_poll_are_read_again() -> None:
    world = World()
    consumer = world.consumer("a")
    before = dict(consumer.positions)

    def fetch(positions: dict[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Record]]:
        yield next(Log.fetch(world.log, positions))
        raise KeyboardInterrupt

    world.log.fetch = fetch  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        consumer.poll()
    assert consumer.positions == before


def test_offsets_are_committed_by_and_by() -> None:
    world = World()
    consumer = world.consumer("a", auto_commit_seconds=0)
    consumer.poll()
    assert world.offset(0) is None
    consumer.poll()
    assert world.offset(0) == b"10"
