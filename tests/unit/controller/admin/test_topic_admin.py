"""CreateTopics, CreatePartitions and the first step of DeleteTopics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ottla.controller.admin import topic_limits as topic_size
from ottla.controller.admin.placement import Assignment
from ottla.controller.admin.topic_admin import CreatedTopic, NewPartitions, NewTopic
from ottla.controller.model import ReplicaAssignment
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, DeleteOp, Op, OpResult, StoreError
from ottla.controller.tree.znodes_admin import decode_config, decode_config_change
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from tests.doubles.controller_cluster import Cluster, settle


async def create(
    cluster: Cluster, *topics: NewTopic, validate_only: bool = False
) -> list[CreatedTopic]:
    rows = await cluster.controller.create_topics(
        topics, validate_only=validate_only, timeout_ms=1000
    )
    await settle()
    return rows


async def test_created_topic_is_in_the_tree_and_has_leaders(cluster: Cluster) -> None:
    (row,) = await create(cluster, NewTopic("t", 3, 2, configs={"retention.ms": "1000"}))
    assert row.error.code == 0
    assert (row.num_partitions, row.replication_factor) == (3, 2)
    state = cluster.topic("t")
    assert state.topic_id == row.topic_id != ZERO_UUID
    for index in range(3):
        assert cluster.leader("t", index) == state.assignments[index].replicas[0]
    config = cluster.tree.nodes["/config/topics/t"].data
    assert decode_config("", config) == {"retention.ms": "1000"}
    (change,) = cluster.tree.nodes[znodes.CONFIG_CHANGES].children
    path = f"{znodes.CONFIG_CHANGES}/{change}"
    assert decode_config_change(path, cluster.tree.nodes[path].data) == "topics/t"
    for broker in cluster.brokers.values():
        assert TopicPartition("t", 2) in broker.metadata


async def test_many_topics_at_once(cluster: Cluster) -> None:
    rows = await create(cluster, *(NewTopic(f"t{number}", 2, 1) for number in range(300)))
    assert [row.name for row in rows] == [f"t{number}" for number in range(300)]
    assert {row.error.code for row in rows} == {0}
    assert len(cluster.controller.context.leadership) == 600


async def test_defaults_come_from_the_settings() -> None:
    cluster = Cluster(settings=ControllerSettings(num_partitions=4, default_replication_factor=3))
    await cluster.start()
    (row,) = await create(cluster, NewTopic("t"))
    assert (row.num_partitions, row.replication_factor) == (4, 3)
    await cluster.stop()


async def test_a_policy_rejects_what_is_valid_otherwise() -> None:
    asked: list[tuple[str, int]] = []

    def admit(topic: NewTopic, assignment: Assignment) -> None:
        asked.append((topic.name, len(assignment)))
        if len(assignment) > 2:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "too wide")

    cluster = Cluster(settings=ControllerSettings(num_partitions=3), admit_topic=admit)
    await cluster.start()
    topics = NewTopic("small", 2), NewTopic("wide"), NewTopic("bad name", 9)
    for validate_only in (True, False):
        small, wide, bad = await create(cluster, *topics, validate_only=validate_only)
        assert small.error.code == ErrorCode.NONE
        assert wide.error == (ErrorCode.POLICY_VIOLATION, "too wide")
        assert bad.error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert set(cluster.controller.context.assignments) == {"small"}
    assert asked == [("small", 2), ("wide", 3)] * 2
    await cluster.stop()


async def test_given_assignment_is_taken_as_it_is(cluster: Cluster) -> None:
    await create(cluster, NewTopic("t", assignments={0: [3, 1], 1: [2, 3]}))
    assert cluster.topic("t").assignments == {
        0: ReplicaAssignment((3, 1)),
        1: ReplicaAssignment((2, 3)),
    }


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (NewTopic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII alphanumerics"),
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty string"),
        (NewTopic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
        (NewTopic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with existing topics: a.b"),
        (NewTopic("n", 0), ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        (NewTopic("n", -2), ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        (NewTopic("n", 200_000), ErrorCode.INVALID_PARTITIONS, "must not be above"),
        (NewTopic("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (
            NewTopic("n", 1, 4),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 4 larger than available brokers: 3.",
        ),
        (NewTopic("n", configs={"x": None}), ErrorCode.INVALID_CONFIG, "configs: x"),
        (
            NewTopic("n", 1, assignments={0: [1]}),
            ErrorCode.INVALID_REQUEST,
            "Both cannot be used at the same time.",
        ),
        (
            NewTopic("n", assignments={0: [1], 1: [1, 2]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "same number of replicas",
        ),
        (NewTopic("n", assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "at least one"),
        (
            NewTopic("n", assignments={0: [1, 1]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Duplicate replica assignment",
        ),
        (
            NewTopic("n", assignments={0: [-1]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid broker id",
        ),
        (
            NewTopic("n", assignments={1: [1]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "consecutive 0-based",
        ),
    ],
)
async def test_refusals(cluster: Cluster, topic: NewTopic, code: int, words: str) -> None:
    await create(cluster, NewTopic("there", 1, 1), NewTopic("a.b", 1, 1))
    before = dict(cluster.tree.nodes)
    (row,) = await create(cluster, topic)
    assert row.error.code == code
    assert words in (row.error.message or "")
    assert (row.topic_id, row.num_partitions, row.replication_factor) == (ZERO_UUID, -1, -1)
    assert cluster.tree.nodes == before


async def test_good_topics_are_made_beside_bad_ones(cluster: Cluster) -> None:
    rows = await create(cluster, NewTopic("a", 1, 1), NewTopic("b", 0), NewTopic("c", 1, 1))
    assert [row.error.code for row in rows] == [0, ErrorCode.INVALID_PARTITIONS, 0]
    assert sorted(cluster.controller.context.assignments) == ["a", "c"]


async def test_topics_of_one_request_must_not_collide(cluster: Cluster) -> None:
    rows = await create(cluster, NewTopic("x.y", 1, 1), NewTopic("x_y", 1, 1))
    assert [row.error.code for row in rows] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    again = await create(cluster, NewTopic("twice", 1, 1), NewTopic("twice", 2, 1))
    assert [row.error.code for row in again] == [ErrorCode.INVALID_REQUEST]
    assert not cluster.exists(znodes.topic_path("twice"))


async def test_validate_only_writes_nothing(cluster: Cluster) -> None:
    before = dict(cluster.tree.nodes)
    good, bad = await create(cluster, NewTopic("t", 2, 3), NewTopic("u", 1, 9), validate_only=True)
    assert (good.error.code, good.num_partitions, good.replication_factor) == (0, 2, 3)
    assert good.topic_id == ZERO_UUID
    assert bad.error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.tree.nodes == before


async def test_topic_that_waits_for_its_deletion_exists(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2,))
    await cluster.remove_broker(2)
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    (row,) = await create(cluster, NewTopic("t", 1, 1))
    assert row.error.code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_topic_made_by_another_process_at_the_same_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_write(
        cluster,
        monkeypatch,
        lambda: cluster.create_node(znodes.topic_path("t"), b'{"partitions":{"0":[1]}}'),
    )
    (row,) = await create(cluster, NewTopic("t", 1, 1))
    assert row.error.code == ErrorCode.TOPIC_ALREADY_EXISTS


def at_the_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Calls `meanwhile` once, when topics have been checked and before they are written."""
    writer = cluster.controller._lifecycle.topic_admin.writer
    original = writer.multi_many
    left = [meanwhile]

    async def write(batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | StoreError]:
        if left:
            left.pop()()
        return await original(batches)

    monkeypatch.setattr(writer, "multi_many", write)


@pytest.mark.parametrize("settings", [{}, {"retention.ms": "1000"}])
async def test_settings_written_at_the_same_moment_are_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    data = b'{"version":1,"config":{"old":"1"}}'
    at_the_write(cluster, monkeypatch, lambda: cluster.write(CreateOp("/config/topics/t", data)))
    rows = await create(cluster, NewTopic("t", 1, 1, configs=settings), NewTopic("u", 1, 1))
    assert [row.error.code for row in rows] == [0, 0]
    assert decode_config("", cluster.tree.nodes["/config/topics/t"].data) == settings


async def test_settings_deleted_at_the_same_moment_are_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(CreateOp("/config/topics/t", b'{"version":1,"config":{"old":"1"}}'))
    at_the_write(cluster, monkeypatch, lambda: cluster.write(DeleteOp("/config/topics/t")))
    (row,) = await create(cluster, NewTopic("t", 1, 1))
    assert row.error.code == 0
    assert decode_config("", cluster.tree.nodes["/config/topics/t"].data) == {}


async def test_configuration_left_by_an_earlier_topic_is_replaced(cluster: Cluster) -> None:
    cluster.write(CreateOp("/config/topics/t", b'{"version":1,"config":{"old":"1"}}'))
    await create(cluster, NewTopic("t", 1, 1))
    assert decode_config("", cluster.tree.nodes["/config/topics/t"].data) == {}


async def test_replicas_are_spread_over_racks() -> None:
    cluster = Cluster((1, 2, 3, 4), racks={1: "a", 2: "a", 3: "b", 4: "b"})
    await cluster.start()
    await create(cluster, NewTopic("t", 8, 2))
    for assignment in cluster.topic("t").assignments.values():
        assert {cluster.racks[replica] for replica in assignment.replicas} == {"a", "b"}
    await cluster.stop()


async def test_brokers_on_their_way_out_get_no_replicas(cluster: Cluster) -> None:
    await cluster.controller.controlled_shutdown(2, -1)
    await create(cluster, NewTopic("t", 6, 2))
    for assignment in cluster.topic("t").assignments.values():
        assert 2 not in assignment.replicas
    (row,) = await create(cluster, NewTopic("u", 1, 3))
    assert row.error.code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_old_protocol_versions_give_no_topic_ids() -> None:
    cluster = Cluster(settings=ControllerSettings(inter_broker_protocol_version="2.7"))
    cluster.channels.silent = {1, 2, 3}  # the doubles speak newer versions only
    await cluster.start()
    await cluster.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=0)
    assert cluster.topic("t").topic_id is None
    await cluster.stop()


# CreatePartitions


async def grow(
    cluster: Cluster, *requests: NewPartitions, validate_only: bool = False
) -> list[int]:
    rows = await cluster.controller.create_partitions(
        requests, validate_only=validate_only, timeout_ms=1000
    )
    await settle()
    return [row.code for row in rows.values()]


async def test_added_partitions_get_leaders(cluster: Cluster) -> None:
    await create(cluster, NewTopic("t", 2, 2))
    assert await grow(cluster, NewPartitions("t", 5)) == [0]
    assignments = cluster.topic("t").assignments
    assert sorted(assignments) == [0, 1, 2, 3, 4]
    for index in range(5):
        assert len(assignments[index].replicas) == 2
        assert cluster.leader("t", index) == assignments[index].replicas[0]


async def test_added_partitions_where_they_were_requested(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    assert await grow(cluster, NewPartitions("t", 3, [[2, 3], [3, 1]])) == [0]
    assert cluster.topic("t").assignments[2] == ReplicaAssignment((3, 1))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (NewPartitions("nothing", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("bad name", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 3, [[1, 2], [2, 3]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1, 9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_refused_growth(cluster: Cluster, request_: NewPartitions, code: int) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3))
    before = dict(cluster.tree.nodes)
    assert await grow(cluster, request_) == [code]
    assert cluster.tree.nodes == before


async def test_partitions_of_one_request_are_limited() -> None:
    settings = ControllerSettings(
        auto_leader_rebalance_enable=False, max_topic_partitions_per_request=10
    )
    cluster = Cluster(settings=settings)
    await cluster.start()
    topics = [NewTopic("a", 6, 1), NewTopic("b", 5, 1), NewTopic("c", 4, 1), NewTopic("d", 1, 1)]
    rows = await create(cluster, *topics)
    above = ErrorCode.INVALID_PARTITIONS
    assert [row.error.code for row in rows] == [0, above, 0, above]
    requests = [NewPartitions("a", 12), NewPartitions("c", 9), NewPartitions("a", 2**31 - 1)]
    assert await grow(cluster, *requests[:2]) == [0, above]
    assert await grow(cluster, requests[2], validate_only=True) == [above]
    assert await grow(cluster, requests[1]) == [0]
    await cluster.stop()


async def test_topics_fit_into_their_znodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper would close the connection of the controller, which resigns then."""
    monkeypatch.setattr(topic_size, "MAX_TOPIC_BYTES", 1000)
    rows = await create(cluster, NewTopic("large", 200, 2), NewTopic("small", 20, 2))
    assert [row.error.code for row in rows] == [ErrorCode.INVALID_PARTITIONS, 0]
    assert not cluster.exists(znodes.topic_path("large"))
    before = cluster.topic("small")
    assert await grow(cluster, NewPartitions("small", 200)) == [ErrorCode.INVALID_PARTITIONS]
    assert cluster.topic("small") == before


async def test_growth_while_partitions_move_or_topics_go(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await cluster.controller.alter_partition_reassignments({TopicPartition("t", 0): (2,)})
    assert await grow(cluster, NewPartitions("t", 2)) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    await cluster.create_topic("u", (3,))
    await cluster.remove_broker(3)
    cluster.create_node(znodes.delete_topic_path("u"))
    await settle()
    assert await grow(cluster, NewPartitions("u", 2)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_growth_that_is_only_validated(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    before = dict(cluster.tree.nodes)
    assert await grow(cluster, NewPartitions("t", 2), validate_only=True) == [0]
    assert cluster.tree.nodes == before


async def test_growth_requested_twice_in_one_request(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    codes = await grow(cluster, NewPartitions("t", 2), NewPartitions("t", 3))
    assert codes == [ErrorCode.INVALID_REQUEST]


# DeleteTopics


async def test_deletion_marks(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    rows = await cluster.controller._lifecycle.topic_admin.request_deletion(["t", "no", "t"])
    assert {topic: row.code for topic, row in rows.items()} == {
        "t": 0,
        "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert cluster.exists(znodes.delete_topic_path("t"))
    again = await cluster.controller._lifecycle.topic_admin.request_deletion(["t"])
    assert again["t"].code == 0


async def test_deletion_switched_off() -> None:
    cluster = Cluster(settings=ControllerSettings(delete_topic_enable=False))
    await cluster.start()
    await cluster.create_topic("t", (1,))
    rows = await cluster.controller.delete_topics(["t"], timeout_ms=1000)
    assert rows["t"].code == ErrorCode.TOPIC_DELETION_DISABLED
    assert not cluster.exists(znodes.delete_topic_path("t"))
    await cluster.stop()


# What changes cost


class Purse:
    """Allows that many partitions; records what was requested."""

    def __init__(self, partitions: int) -> None:
        self.left = partitions
        self.charged: list[int] = []

    def __call__(self, partitions: int) -> None:
        self.charged.append(partitions)
        if partitions > self.left:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too much")
        self.left -= partitions


async def test_topics_are_paid_for_before_they_are_written(cluster: Cluster) -> None:
    purse = Purse(5)
    rows = await cluster.controller.create_topics(
        [NewTopic("a", 3, 1), NewTopic("b", 3, 1), NewTopic("bad name", 1, 1), NewTopic("c", 2, 1)],
        timeout_ms=1000,
        charge=purse,
    )
    await settle()
    assert [row.error.code for row in rows] == [
        ErrorCode.NONE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]
    assert purse.charged == [3, 3, 2]
    assert znodes.topic_path("b") not in cluster.tree.nodes
    await cluster.controller.create_topics([NewTopic("d", 1, 1)], validate_only=True, charge=purse)
    assert purse.charged == [3, 3, 2]


async def test_only_added_partitions_are_paid_for(cluster: Cluster) -> None:
    await create(cluster, NewTopic("t", 2, 1))
    purse = Purse(3)

    async def grow_to(count: int, *, validate_only: bool = False) -> int:
        rows = await cluster.controller.create_partitions(
            [NewPartitions("t", count)],
            validate_only=validate_only,
            timeout_ms=1000,
            charge=purse,
        )
        await settle()
        return rows["t"].code

    assert await grow_to(5, validate_only=True) == 0
    assert await grow_to(1) == ErrorCode.INVALID_PARTITIONS
    assert purse.charged == []
    assert await grow_to(5) == 0
    assert await grow_to(6) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert purse.charged == [3, 1]
    assert len(cluster.topic("t").assignments) == 5
