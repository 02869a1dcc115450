"""How much one turn of the event loop does in the controller of a large cluster, in calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla.controller.admin.topic_admin import NewTopic, TopicAdmin
from ottla.controller.changes.leader_elections import PREFERRED, LeaderElections
from ottla.controller.model import BrokerInfo, LeaderAndIsr, ReplicaAssignment, TopicState
from ottla.controller.registration import create_persistent_paths
from ottla.controller.settings import ControllerSettings
from ottla.controller.state.context import ControllerContext
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, Op
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle
from tests.hostile.turns import TurnMeter
from tests.scale.test_turns import MAX_CALLS, begin, in_turns, meter

__all__ = ["meter"]

TOPICS, PARTITIONS = 250, 20
BROKERS = (1, 2, 3)
ELECTED = 100_000
EXISTING = 100_000


def fill(cluster: Cluster) -> None:
    """Each topic has its partitions on all brokers, led by one after the other."""
    ops: list[Op] = []
    for number in range(TOPICS):
        topic = f"topic-{number}"
        assignments = {}
        ops_of_topic: list[Op] = []
        for index in range(PARTITIONS):
            replicas = tuple(BROKERS[(index + each) % len(BROKERS)] for each in range(len(BROKERS)))
            assignments[index] = ReplicaAssignment(replicas)
            partition = TopicPartition(topic, index)
            state = LeaderAndIsr(replicas[0], 0, replicas)
            ops_of_topic.append(CreateOp(znodes.partition_path(partition)))
            ops_of_topic.append(CreateOp(znodes.state_path(partition), znodes.encode_state(state)))
        data = znodes.encode_topic(TopicState((number + 1).to_bytes(16, "big"), assignments))
        ops.append(CreateOp(znodes.topic_path(topic), data))
        ops.append(CreateOp(znodes.partitions_path(topic)))
        ops += ops_of_topic
    cluster.write(*ops)


def partitions_sent(cluster: Cluster, kind: type, broker_id: int) -> int:
    return sum(
        len(topic.partition_states)
        for request in cluster.requests(kind, broker_id)
        for topic in request.topic_states
    )


async def test_states_of_a_large_cluster(meter: TurnMeter) -> None:
    cluster = Cluster(BROKERS)
    cluster.channels.silent = set(BROKERS)
    everything = TOPICS * PARTITIONS
    await cluster.store.connect()
    await create_persistent_paths(cluster.store)
    fill(cluster)
    await begin(meter)

    await in_turns(cluster.start())
    assert meter.most_calls < MAX_CALLS, meter.where
    for broker_id in BROKERS:
        assert partitions_sent(cluster, LeaderAndIsrRequest, broker_id) == everything
        assert partitions_sent(cluster, UpdateMetadataRequest, broker_id) >= everything

    cluster.sent.clear()
    await begin(meter)
    await in_turns(cluster.remove_broker(2))
    assert meter.most_calls < MAX_CALLS, meter.where
    assert partitions_sent(cluster, LeaderAndIsrRequest, 1) >= everything

    cluster.sent.clear()
    await begin(meter)
    await in_turns(cluster.add_broker(2))
    assert partitions_sent(cluster, LeaderAndIsrRequest, 2) == everything
    await settle()
    await cluster.stop()


class ElectedPartitions:
    """The state machine of partitions: notes for how many a leader was to be elected."""

    elected = 0

    async def handle_state_changes(
        self, partitions: list[TopicPartition], *_: object
    ) -> dict[TopicPartition, LeaderAndIsr]:
        self.elected += len(partitions)
        return dict.fromkeys(partitions, LeaderAndIsr(1, 1, (1, 2)))


async def test_preferred_leaders_of_a_large_cluster(meter: TurnMeter) -> None:
    context = ControllerContext()
    for broker_id in (1, 2):
        context.brokers[broker_id] = cast("BrokerInfo", object())
    for index in range(ELECTED):
        partition = TopicPartition("t", index)
        context.set_assignment(partition, ReplicaAssignment((1, 2)))
        context.leadership[partition] = LeaderAndIsr(2, 0, (1, 2))
    partitions = ElectedPartitions()
    elections = LeaderElections(context, cast("Any", None), cast("Any", partitions))
    await begin(meter)
    await in_turns(elections.auto_leader_rebalance(ControllerSettings()))
    assert meter.most_calls < MAX_CALLS, meter.where
    assert partitions.elected == ELECTED

    await begin(meter)
    assert len(await in_turns(elections.elect(None, PREFERRED))) == ELECTED
    assert partitions.elected == 2 * ELECTED


async def test_a_topic_is_created_beside_very_many(meter: TurnMeter) -> None:
    class Store:
        async def get_many(self, paths: list[str]) -> list[None]:
            return [None] * len(paths)

    context = ControllerContext()
    context.brokers[1] = cast("BrokerInfo", SimpleNamespace(broker_id=1, rack=None))
    for number in range(EXISTING):
        context.add_topic(f"topic.{number}", None)
    admin = TopicAdmin(context, cast("Any", SimpleNamespace(store=Store())), ControllerSettings())
    wanted = [NewTopic(f"topic-{number}.new", 1, 1) for number in range(64)]
    await begin(meter)
    created = await in_turns(
        admin.create_topics([*wanted, NewTopic("topic_7")], validate_only=True)
    )
    assert [row.error.code for row in created] == [0] * 64 + [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert meter.all_calls < 10 * EXISTING  # they are read once, not for each new topic
