"""A cluster seen from all sides: its znodes, what single brokers return to clients, its data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from ottla.protocol.client.cluster import Address
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tests.doubles.broker_cluster import BrokerCluster
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce

SECONDS = 60.0
TOPIC_CONFIG, BROKER_CONFIG = 2, 4


class ClusterView:
    def __init__(self, cluster: BrokerCluster, tree: KazooClient) -> None:
        self.cluster = cluster
        self.tree = tree
        self.client = BlockingClient(cluster.bootstrap)

    # -- znodes ---------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self.tree.exists(path) is not None

    def children(self, path: str) -> list[str]:
        return sorted(self.tree.get_children(path))

    def znode(self, path: str) -> Any:
        """The JSON of a znode, None when there is none."""
        try:
            return json.loads(self.tree.get(path)[0])
        except NoNodeError:
            return None

    def state(self, topic: str, index: int = 0) -> Any:
        return self.znode(f"/brokers/topics/{topic}/partitions/{index}/state")

    def controller(self) -> int:
        """The id in /controller; -1 while there is none."""
        found = self.znode("/controller")
        return -1 if found is None else int(found["brokerid"])

    def is_registered(self, broker_id: int) -> bool:
        return self.exists(f"/brokers/ids/{broker_id}")

    # -- what clients see -----------------------------------------------------------------------

    def ask(self, broker_id: int, request: Message) -> Message:
        """The response of one broker, whatever the others would say."""
        address = Address("127.0.0.1", self.cluster[broker_id].port)
        connection = BlockingConnection(address, client_id="view")
        deadline_ms = monotonic_ms() + int(SECONDS * 1000)
        connection.connect(deadline_ms)
        try:
            response = connection.request(request, deadline_ms)
        finally:
            connection.close()
        assert response is not None
        return response

    def metadata(self, broker_id: int, topic: str) -> MetadataResponse:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        response = self.ask(broker_id, request)
        assert isinstance(response, MetadataResponse)
        return response

    def partitions(self, broker_id: int, topic: str) -> list[MetadataResponsePartition]:
        """What a broker returns of a topic, by index; nothing of a topic that it does not know."""
        (found,) = self.metadata(broker_id, topic).topics
        return sorted(found.partitions, key=lambda each: each.partition_index)

    def leaders(self, topic: str, by: int) -> list[int]:
        return [each.leader_id for each in self.partitions(by, topic)]

    def wait_for_leaders(self, topic: str, leaders: list[int], *brokers: int) -> None:
        """Until each of the brokers (all, when none is named) returns these leaders to clients."""
        for broker_id in brokers or tuple(self.cluster.brokers):
            eventually(
                lambda by=broker_id: self.leaders(topic, by) == leaders,  # type: ignore[misc]
                f"broker {broker_id} does not tell of the leaders {leaders} of {topic}",
            )

    def wait_for_isr(self, topic: str, isr: set[int], index: int = 0) -> None:
        eventually(
            lambda: set((self.state(topic, index) or {"isr": ()})["isr"]) == isr,
            f"the in-sync replicas of {topic}-{index} do not become {isr}",
        )

    # -- acts -----------------------------------------------------------------------------------

    def create(self, topic: str, *replicas: list[int], **configs: str) -> None:
        """A topic with these replicas; every broker knows its leaders when this returns."""
        rows = [CreatableReplicaAssignment(index, ids) for index, ids in enumerate(replicas)]
        settings = [
            CreatableTopicConfig(name.replace("_", "."), text) for name, text in configs.items()
        ]
        request = CreateTopicsRequest([CreatableTopic(topic, -1, -1, rows, settings)], 30_000)
        response = self.client.call_controller(request)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == 0, response.topics[0]
        live = [each for each, broker in self.cluster.brokers.items() if broker.is_running]
        self.wait_for_leaders(topic, [each[0] for each in replicas], *live)

    def produce(self, topic: str, count: int, acks: str = "all", size: int = 1) -> None:
        rows = [Outgoing(b"%d" % number * size, partition=0) for number in range(count)]
        produce(self.cluster.bootstrap, topic, rows, acks=acks)

    def delete(self, topic: str) -> None:
        """Returns when the controller has taken it up: some replicas may be away."""
        request = DeleteTopicsRequest([DeleteTopicState(topic)], [topic], 1_000)
        response = self.client.call_controller(request)
        assert isinstance(response, DeleteTopicsResponse)
        assert response.responses[0].error_code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)

    def alter_config(self, kind: int, name: str, **settings: str) -> None:
        rows = [AlterableConfig(key.replace("_", "."), 0, text) for key, text in settings.items()]
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, rows)])
        response = (
            self.ask(int(name), request) if kind == BROKER_CONFIG else self.client.call(request)
        )
        assert isinstance(response, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in response.responses] == [0]

    def reassign(self, topic: str, replicas: list[int] | None) -> None:
        """Partition 0 is to be there; None cancels what was requested."""
        row = ReassignableTopic(topic, [ReassignablePartition(0, replicas)])
        response = self.client.call_controller(AlterPartitionReassignmentsRequest(topics=[row]))
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        assert response.error_code == 0
        assert response.responses[0].partitions[0].error_code == 0

    def replica(self, broker_id: int, topic: str, index: int = 0) -> Path | None:
        """Where a broker keeps a replica, in whichever of its log directories."""
        root = self.cluster[broker_id].data_directory
        found = [
            path
            for path in (root / f"{topic}-{index}", *root.glob(f"*/{topic}-{index}"))
            if path.is_dir()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def has_data(self, broker_id: int, topic: str, index: int = 0) -> bool:
        return self.replica(broker_id, topic, index) is not None

    def log_bytes(self, broker_id: int, topic: str, index: int = 0) -> bytes:
        directory = self.replica(broker_id, topic, index)
        if directory is None:
            return b""
        return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))

    def wait_for_same_data(self, topic: str, *brokers: int) -> None:
        eventually(
            lambda: len({self.log_bytes(each, topic) for each in brokers}) == 1,
            f"the replicas of {topic} differ",
        )


@contextmanager
def view(cluster: BrokerCluster) -> Iterator[ClusterView]:
    tree = KazooClient(cluster.zookeeper.connect)
    tree.start(SECONDS)
    found = ClusterView(cluster, tree)
    try:
        yield found
    finally:
        found.client.close()
        tree.stop()
        tree.close()
