"""One real controller among brokers that respond at once, on a tree in memory.

Everything happens when ``settle`` is awaited; time moves with ``runtime.advance``. Requests to
brokers are kept in ``sent``.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ottla.controller.admin.topic_admin import (
    Admit,
    CreatedTopic,
    NewTopic,
    admit_every_topic,
)
from ottla.controller.controller import Controller
from ottla.controller.lifecycle import ISR_METADATA_DELAY_MS
from ottla.controller.model import BrokerInfo, Endpoint, LeaderAndIsr, TopicState
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import Callback, Encoded
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import CreateOp, DeleteOp, Op, SetOp
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_brokers import SimulatedBroker
from tests.doubles.controller_runtime import ManualRuntime

M = TypeVar("M", bound=Message)


def broker_info(broker_id: int, rack: str | None = None) -> BrokerInfo:
    return BrokerInfo(
        broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9092 + broker_id),), rack
    )


async def settle() -> None:
    """Runs the loop until nothing can go on any more; only one task may wait so at a time."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined] # no other way to ask
    while ready:  # noqa: ASYNC110 - other turns of the loop are what is waited for
        await asyncio.sleep(0)


class RespondingChannels:
    """Every broker responds on the next turn of the loop, unless it is in ``silent``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.open: dict[int, BrokerInfo] = {}
        self.silent: set[int] = set()

    def add_broker(self, broker: BrokerInfo) -> None:
        self.open[broker.broker_id] = broker

    def update_broker(self, broker: BrokerInfo) -> None:
        self.open[broker.broker_id] = broker

    def remove_broker(self, broker_id: int) -> None:
        self.open.pop(broker_id, None)

    def send(
        self,
        broker_id: int,
        request: Message,
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        if broker_id not in self.open:
            callback(None)
            return
        self.cluster.sent.append((broker_id, request))
        self.cluster.versions[request.NAME] = version
        if broker_id not in self.silent:
            broker = self.cluster.brokers[broker_id]
            response = broker.handle(request, version)
            asyncio.get_running_loop().call_soon(callback, response)


class Cluster:
    """``start`` elects broker 1; ``stop`` ends everything."""

    def __init__(
        self,
        broker_ids: tuple[int, ...] = (1, 2, 3),
        *,
        settings: ControllerSettings | None = None,
        racks: dict[int, str] | None = None,
        features: dict[str, tuple[int, int]] | None = None,
        admit_topic: Admit = admit_every_topic,
    ) -> None:
        self.runtime = ManualRuntime()
        self.tree = EmbeddedTree(self.runtime.now_ms)
        self.store = EmbeddedStore(tree=self.tree)
        self.brokers: dict[int, SimulatedBroker] = {}
        self.sessions: dict[int, EmbeddedStore] = {}
        self.sent: list[tuple[int, Message]] = []
        self.versions: dict[str, int] = {}
        self.racks = racks or {}
        self.features = features or {}
        self.channels = RespondingChannels(self)
        self.initial = broker_ids
        self.settings = settings or ControllerSettings(auto_leader_rebalance_enable=False)
        self.registration = BrokerRegistration(
            self.store,
            broker_info(1, self.racks.get(1))._replace(features=self.features),
            self.runtime.now_ms,
        )
        self.elected: list[int] = []
        self.kraft: list[tuple[str, int]] = []
        self.controller = Controller(
            1,
            self.store,
            self.registration,
            self.channels,
            self.settings,
            self.runtime,
            supported_features=self.features,
            admit_topic=admit_topic,
            on_controller_change=self.elected.append,
            on_kraft=lambda problem, epoch: self.kraft.append((problem, epoch)),
        )

    async def start(self) -> None:
        await self.store.connect()
        self.brokers[1] = SimulatedBroker(1)
        self.brokers[1].broker_epoch = await self.registration.register()
        for broker_id in self.initial:
            if broker_id != 1:
                await self.add_broker(broker_id)
        await self.controller.start(timeout_ms=0)
        await settle()
        assert self.controller.is_active

    async def stop(self) -> None:
        await self.runtime.close()
        await settle()
        assert self.runtime.failures == []

    async def add_broker(
        self,
        broker_id: int,
        *,
        features: dict[str, tuple[int, int]] | None = None,
        unclean_shutdown: bool = False,
    ) -> None:
        """Starts a broker; one that ran before comes back with a new epoch."""
        session = self.sessions[broker_id] = EmbeddedStore(tree=self.tree)
        await session.connect()
        info = broker_info(broker_id, self.racks.get(broker_id))
        info = info._replace(features=self.features if features is None else features)
        self.brokers[broker_id] = SimulatedBroker(broker_id)
        registration = BrokerRegistration(session, info, self.runtime.now_ms)
        registration.unclean_shutdown = unclean_shutdown
        self.brokers[broker_id].broker_epoch = await registration.register()
        await settle()

    async def remove_broker(self, broker_id: int) -> None:
        await self.sessions.pop(broker_id).close()
        await settle()

    # Looks

    def state(self, topic: str, partition: int = 0) -> LeaderAndIsr:
        where = TopicPartition(topic, partition)
        node = self.tree.nodes[znodes.state_path(where)]
        return znodes.decode_state(where, node.data, node.version)

    def leader(self, topic: str, partition: int = 0) -> int:
        return self.state(topic, partition).leader

    def topic(self, topic: str) -> TopicState:
        return znodes.decode_topic(topic, self.tree.nodes[znodes.topic_path(topic)].data)

    def exists(self, path: str) -> bool:
        return path in self.tree.nodes

    def requests(self, kind: type[M], broker_id: int | None = None) -> list[M]:
        return [
            request
            for to, request in self.sent
            if isinstance(request, kind) and broker_id in (None, to)
        ]

    # Acts

    def write(self, *ops: Op) -> None:
        """Another process writes to the tree."""
        session = self.tree.open_session()
        self.tree.apply(session, ops)

    def create_node(self, path: str, data: bytes = b"") -> None:
        self.write(CreateOp(path, data))

    def set_node(self, path: str, data: bytes) -> None:
        self.write(SetOp(path, data))

    def delete_node(self, path: str) -> None:
        self.write(DeleteOp(path))

    async def create_topic(
        self, name: str, *assignments: tuple[int, ...], **configs: str
    ) -> CreatedTopic:
        """With the given replicas for each partition; configs with ``_`` for dots."""
        topic = NewTopic(
            name,
            assignments=dict(enumerate(assignments)),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        rows = await self.controller.create_topics([topic], timeout_ms=1)
        await settle()
        return rows[0]

    async def change_isr(
        self, topic: str, isr: tuple[int, ...], partition: int = 0
    ) -> AlterPartitionResponsePartitionData:
        """The leader proposes an ISR; returns the row of that partition."""
        request = self.isr_request(topic, isr, partition)
        response = await self.controller.alter_partition(request, 3)
        await settle()
        self.runtime.advance(ISR_METADATA_DELAY_MS)
        await settle()
        assert response.error_code == 0
        return response.topics[0].partitions[0]

    def isr_request(
        self, topic: str, isr: tuple[int, ...], partition: int = 0
    ) -> AlterPartitionRequest:
        state = self.state(topic, partition)
        topic_id = self.topic(topic).topic_id
        assert topic_id is not None
        return AlterPartitionRequest(
            broker_id=state.leader,
            broker_epoch=self.brokers[state.leader].broker_epoch,
            topics=[
                AlterPartitionRequestTopicData(
                    topic_id=topic_id,
                    partitions=[
                        AlterPartitionRequestPartitionData(
                            partition_index=partition,
                            leader_epoch=state.leader_epoch,
                            new_isr_with_epochs=[BrokerState(broker_id=each) for each in isr],
                            leader_recovery_state=0,
                            partition_epoch=state.partition_epoch,
                        )
                    ],
                )
            ],
        )
