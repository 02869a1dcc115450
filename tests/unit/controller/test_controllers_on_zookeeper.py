"""Three controllers on a real ZooKeeper: election, failover, expiry, outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.controller.admin.topic_admin import NewTopic
from ottla.controller.controller import Controller
from ottla.controller.model import BrokerInfo, LeaderAndIsr, ReplicaAssignment
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import QueuedBrokerChannels
from ottla.controller.runtime import LoopRuntime
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import decode_request, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_brokers import SimulatedBroker
from tests.doubles.controller_cluster import broker_info
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.eventually import eventually_async
from tests.doubles.znode_ensembles import WAIT_DEADLINE_S, ZooKeeperEnsemble
from tests.doubles.zookeeper_process import (
    ZooKeeperProcess,
    start_ottla_zookeeper,
    start_zookeeper,
)

pytestmark = pytest.mark.zookeeper

T0 = TopicPartition("t", 0)


class DirectConnection:
    """A call into the broker, if it lives, instead of a connection to it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def request(self, request: Message, version: int, timeout_ms: int) -> Message:
        await asyncio.sleep(0)
        if not self.node.alive:
            raise ConnectionResetError("the broker is dead")
        # What is encoded for several brokers has no fields of its own.
        sent = decode_request(encode_request(1, None, request, version)[4:])[1]
        return self.node.broker.handle(sent, version)

    async def close(self) -> None:
        pass


class Node:
    """One broker with its controller."""

    def __init__(self, network: Network, broker_id: int) -> None:
        self.alive = True
        self.broker = SimulatedBroker(broker_id)
        # The tasks of the double are the loop's; its clock is not used.
        self.runtime = LoopRuntime(network.tasks.spawn)
        self.store = ZooKeeperStore(network.connect, session_timeout_ms=10_000)
        self.registration = BrokerRegistration(
            self.store, broker_info(broker_id), self.runtime.now_ms, on_registered=self._registered
        )
        channels = QueuedBrokerChannels(
            broker_id, self.broker, self.runtime, connect=network.connect_to
        )
        self.controller = Controller(
            broker_id,
            self.store,
            self.registration,
            channels,
            ControllerSettings(auto_leader_rebalance_enable=False),
            self.runtime,
        )

    def _registered(self, epoch: int) -> None:
        self.broker.broker_epoch = epoch

    async def start(self) -> None:
        await self.store.connect()
        await self.registration.register()
        await self.controller.start()


class Network:
    def __init__(self, zookeeper: ZooKeeperProcess) -> None:
        self.tasks = ManualRuntime()
        self.ensemble = ZooKeeperEnsemble(zookeeper)
        self.connect = self.ensemble.connect
        self.nodes: dict[int, Node] = {}

    async def connect_to(self, broker: BrokerInfo, timeout_ms: int) -> DirectConnection:
        node = self.nodes[broker.broker_id]
        if not node.alive:
            raise ConnectionRefusedError("the broker is dead")
        return DirectConnection(node)

    async def add(self, broker_id: int) -> Node:
        node = self.nodes[broker_id] = Node(self, broker_id)
        await node.start()
        return node

    def active(self) -> Node:
        (node,) = (each for each in self.nodes.values() if each.controller.is_active)
        return node

    def is_settled(self, *dead: int) -> bool:
        """One active controller that sees all living brokers."""
        active = [each for each in self.nodes.values() if each.controller.is_active]
        living = sorted(set(self.nodes) - set(dead))
        return len(active) == 1 and sorted(active[0].controller.context.brokers) == living

    async def create(self, topic: str) -> None:
        """Retries until it is created: an outage may have expired sessions, noticed only later."""
        async with asyncio.timeout(WAIT_DEADLINE_S):
            while True:
                await eventually_async(self.is_settled)
                with suppress(KafkaError):
                    wanted = NewTopic(topic, 1, 3)
                    (row,) = await self.active().controller.create_topics([wanted])
                    if row.error.code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                        return
                await asyncio.sleep(0.05)

    async def state(self, node: Node, partition: TopicPartition = T0) -> LeaderAndIsr:
        data, stat = await node.store.get(znodes.state_path(partition))
        return znodes.decode_state(partition, data, stat.version)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.controller.stop(timeout_ms=1_000)
            await node.store.close()
        await self.tasks.close()
        assert self.tasks.failures == []


@pytest.fixture(scope="module", params=[start_zookeeper, start_ottla_zookeeper])
def own_zookeeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperProcess]:
    directory: Path = tmp_path_factory.mktemp("controllers")
    with request.param(directory) as process:
        yield process


@pytest.fixture
async def network(own_zookeeper: ZooKeeperProcess) -> AsyncIterator[Network]:
    made = Network(own_zookeeper)
    for broker_id in (1, 2, 3):
        await made.add(broker_id)
    await eventually_async(made.is_settled)
    yield made
    await made.close()


async def test_topics_are_made_grow_move_and_go(network: Network) -> None:
    controller = network.active().controller
    assert (controller.broker_id, controller.epoch) == (1, 1)
    rows = await controller.create_topics([NewTopic("t", assignments={0: [2, 3], 1: [3, 1]})])
    assert rows[0].error.code == 0
    for node in network.nodes.values():
        assert node.controller.controller_id == 1
        assert len(node.broker.metadata) == 2
    moved = await controller.alter_partition_reassignments({T0: (1, 3)})
    assert moved[T0].code == 0
    await eventually_async(lambda: network.nodes[2].broker.hosted[T0].replicas == (1, 3, 2))
    hosted = network.nodes[2].broker.hosted[T0]
    response = await controller.alter_partition(
        AlterPartitionRequest(
            broker_id=2,
            broker_epoch=network.nodes[2].broker.broker_epoch,
            topics=[
                AlterPartitionRequestTopicData(
                    topic_id=hosted.topic_id,
                    partitions=[
                        AlterPartitionRequestPartitionData(
                            partition_index=0,
                            leader_epoch=hosted.leader_epoch,
                            partition_epoch=hosted.partition_epoch,
                            new_isr_with_epochs=[BrokerState(broker_id=each) for each in (1, 2, 3)],
                        )
                    ],
                )
            ],
        ),
        3,
    )
    assert response.topics[0].partitions[0].error_code == 0
    await eventually_async(lambda: not controller.context.partitions_being_reassigned)
    assert controller.context.assignment(T0) == ReplicaAssignment((1, 3))
    gone = await controller.delete_topics(["t"])
    assert gone["t"].code == 0
    assert await network.nodes[3].store.exists(znodes.topic_path("t")) is None


async def test_killed_controller_is_replaced_and_its_partitions_get_leaders(
    network: Network,
) -> None:
    first = network.active()
    rows = await first.controller.create_topics(
        [NewTopic("t", assignments={index: [1, 2, 3] for index in range(50)})]
    )
    assert rows[0].error.code == 0
    first.alive = False
    first.store.session._closing = True  # a dead process handles and sends nothing
    await network.ensemble.expire(first.store)  # what its death comes to, after the session
    survivors = [node for node in network.nodes.values() if node is not first]
    await eventually_async(lambda: any(node.controller.is_active for node in survivors))
    second = next(node for node in survivors if node.controller.is_active)
    assert second.controller.epoch == first.controller.epoch + 1
    await eventually_async(
        lambda: all(
            node.broker.metadata[TopicPartition("t", index)].leader in (2, 3)
            for node in survivors
            for index in range(50)
        )
    )
    state = await network.state(second)
    assert set(state.isr) == {2, 3}
    assert state.controller_epoch == second.controller.epoch


async def test_expired_controller_changes_nothing_and_comes_back_as_a_broker(
    network: Network,
) -> None:
    first = network.active()
    await first.controller.create_topics([NewTopic("t", assignments={0: [1, 2, 3]})])
    epoch, registered = first.controller.epoch, first.broker.broker_epoch
    await network.ensemble.expire(first.store)
    await eventually_async(lambda: network.is_settled() and first.broker.broker_epoch > registered)
    active = network.active()
    assert active.controller.epoch > epoch
    state = await network.state(active)
    assert state.leader in (1, 2, 3)
    assert state.controller_epoch >= epoch
    parts = active.controller._lifecycle
    assert parts.writer.epoch_version == parts.writer.epoch  # made with 0, set at each election


async def test_outage_of_zookeeper_keeps_the_controller(
    network: Network, own_zookeeper: ZooKeeperProcess
) -> None:
    active = network.active()
    await active.controller.create_topics([NewTopic("t", assignments={0: [1, 2, 3]})])
    before = await network.state(active)
    await asyncio.to_thread(own_zookeeper.stop)
    during = asyncio.gather(
        active.controller.create_topics([NewTopic("u", 1, 3)]), return_exceptions=True
    )
    assert active.controller.is_active
    assert active.broker.hosted[T0].leader == 1  # served all the time
    await asyncio.to_thread(own_zookeeper.start)
    assert len(await during) == 1  # created, or failed with an error: no call waits for ever
    await network.create("v")
    await eventually_async(network.is_settled)
    assert (await network.state(network.active())).leader_epoch >= before.leader_epoch
