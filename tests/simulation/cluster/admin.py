"""What an administrator does to a simulated cluster while it runs."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import (
    AnyBroker,
    Controller,
    LeaderOf,
    Node,
    Route,
    Versions,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Node as SimulatedNode
    from tests.simulation.cluster.world import World

TOPIC = "t"
REQUEST_MS = 4_000
# Created and deleted again and again; its content is not checked.
PASSING_TOPIC = "passing"
# Has one partition with two replicas, for a while.
PAIR_TOPIC = "pair"
HIGH_RATE = 1e9
CREATE_ATTEMPTS = 8
CREATE_SECONDS = 0.3
TOPIC_RESOURCE = 2
CONFIGURATIONS = {
    "segment.bytes": ("1024", "2048", "4096", "100000"),
    "flush.messages": ("1", "5", "1000000"),
    "max.message.bytes": ("100000", "1048588"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "index.interval.bytes": ("64", "4096"),
}


class Admin:
    """Sends one request at a time; what becomes of it is the cluster's affair."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"admin {world.seed}")

    async def send(self, request: Any, route: Route, versions: Versions | None = None) -> Any:
        """The response, or None without one."""
        world = self.world
        client = world.clients.context.run(
            AsyncClient, world.bootstrap, request_timeout_ms=REQUEST_MS, client_id="admin"
        )
        task = world.loop.create_task(
            client.call(request, route, resend=False, versions=versions or Versions()),
            context=world.clients.context,
        )
        with contextlib.suppress(ClientError, KafkaError):
            return await task
        return None

    def any_partition(self) -> int:
        """A partition of the topic."""
        return self._partition()

    def _partition(self) -> int:
        return self.random.randrange(self.world.shape.partitions)

    async def reassign(self) -> None:
        """Other replicas for a partition, in another order; sometimes what runs is cancelled."""
        brokers = list(self.world.nodes)
        chosen: list[int] | None = self.random.sample(brokers, min(3, len(brokers)))
        if self.random.random() < 0.2:
            chosen = None
        row = ReassignablePartition(self._partition(), chosen)
        request = AlterPartitionReassignmentsRequest(REQUEST_MS, [ReassignableTopic(TOPIC, [row])])
        self.world.note(f"reassign {row.partition_index} to {chosen}")
        await self.send(request, Controller())

    async def reassign_from(self, node: SimulatedNode) -> None:
        """One partition that a broker has gets other replicas, without that broker."""
        others = [each for each in self.world.nodes if each != node.broker_id]
        index = self._partition()
        if not others:
            return
        await self.reassign_to(index, self.random.sample(others, min(3, len(others))))

    async def reassign_to_node(self, node: SimulatedNode) -> None:
        """A partition gets a replica on this broker, which may have one already."""
        others = [each for each in self.world.nodes if each != node.broker_id]
        chosen = self.random.sample(others, min(2, len(others)))
        await self.reassign_to(self._partition(), [*chosen, node.broker_id])

    async def reassign_to(self, index: int, chosen: list[int]) -> None:
        """A partition gets these replicas."""
        self.world.note(f"reassign {index} to {chosen}")
        row = ReassignablePartition(index, chosen)
        request = AlterPartitionReassignmentsRequest(REQUEST_MS, [ReassignableTopic(TOPIC, [row])])
        await self.send(request, Controller())

    async def elect(self) -> None:
        """Preferred leaders of a topic's partitions, or unclean ones of the one that allows it."""
        rows, kind = [TopicPartitions(TOPIC, list(range(self.world.shape.partitions)))], 0
        if self.random.random() < 0.3:
            rows, kind = [TopicPartitions("unclean", [0, 1])], 1
        await self.send(ElectLeadersRequest(kind, rows, REQUEST_MS), Controller())

    async def elect_preferred(self) -> None:
        """Preferred leaders of all partitions of all topics."""
        await self.send(ElectLeadersRequest(0, None, REQUEST_MS), Controller())

    async def quota(self) -> None:
        """A byte rate for all clients, or none. Brokers keep a high one of their own, as
        docs/tiered-storage.md advises: followers need what they read as clients."""
        key = self.random.choice(["producer_byte_rate", "consumer_byte_rate"])
        value = self.random.choice([None, 2_000.0, 20_000.0])
        self.world.note(f"set quota {key}={value}")
        entity = [AlterClientQuotasRequestEntityData("client-id", None)]
        op = OpData(key, value or 0.0, remove=value is None)
        rows = [AlterClientQuotasRequestEntryData(entity, [op])]
        for broker_id in self.world.nodes:
            entity = [AlterClientQuotasRequestEntityData("client-id", f"broker-{broker_id}")]
            rows.append(AlterClientQuotasRequestEntryData(entity, [OpData(key, HIGH_RATE, False)]))
        await self.send(AlterClientQuotasRequest(rows), AnyBroker())

    async def delete_records(self) -> None:
        """Up to an offset that is committed, which may be inside a batch."""
        index = self._partition()
        await self.delete_records_before(
            index, self.world.watch.any_offset(TOPIC, index, self.random)
        )

    async def delete_records_before(self, index: int, offset: int) -> None:
        """Those of a partition below an offset that is committed."""
        self.world.note(f"delete records of {TOPIC}-{index} before {offset}")
        where = TopicPartition(TOPIC, index)
        known = self.world.deleted_before
        known[where] = max(offset, known.get(where, 0))
        rows = [DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(index, offset)])]
        route = LeaderOf(where)
        await self.send(DeleteRecordsRequest(rows, REQUEST_MS), route)

    async def recreate(self, replicas: int = 0) -> None:
        """Deletes a topic and creates it again at once, with any number of replicas for 0."""
        await self.delete()
        await self.create(replicas)

    async def create(self, replicas: int = 0) -> None:
        """Creates that topic, as soon as the one of this name is deleted."""
        brokers = min(3, len(self.world.nodes))
        replicas = min(replicas, brokers) or self.random.randint(1, brokers)
        topic = CreatableTopic(PASSING_TOPIC, 2, replicas)
        for _ in range(CREATE_ATTEMPTS):
            response = await self.send(CreateTopicsRequest([topic], REQUEST_MS), Controller())
            code = None if response is None else response.topics[0].error_code
            if code != ErrorCode.TOPIC_ALREADY_EXISTS:
                break
            await asyncio.sleep(CREATE_SECONDS)  # until it is deleted

    async def create_pair(self, leader: int, follower: int) -> None:
        """A topic with two replicas, one of which may be in sync alone."""
        assignments = [CreatableReplicaAssignment(0, [leader, follower])]
        configs = [CreatableTopicConfig("min.insync.replicas", "1")]
        topic = CreatableTopic(PAIR_TOPIC, -1, -1, assignments, configs)
        await self.send(CreateTopicsRequest([topic], REQUEST_MS), Controller())

    async def delete(self, topic: str = PASSING_TOPIC) -> None:
        """Deletes a topic; usually the one that is created again and again."""
        await self.send(
            DeleteTopicsRequest(topic_names=[topic], timeout_ms=REQUEST_MS),
            Controller(),
            Versions(0, 5),
        )

    async def configure(self) -> None:
        """One setting of the topic."""
        names = list(CONFIGURATIONS)
        if self.world.shape.power_loss:
            names.remove("flush.messages")  # what is not flushed may be lost with the power
        name = self.random.choice(names)
        value = self.random.choice(CONFIGURATIONS[name])
        row = AlterConfigsResource(TOPIC_RESOURCE, TOPIC, [AlterableConfig(name, 0, value)])
        self.world.note(f"set {name}={value}")
        await self.send(IncrementalAlterConfigsRequest([row]), Controller())

    async def move(self) -> None:
        """A replica to the other log directory of its broker."""
        node = self.random.choice(list(self.world.nodes.values()))
        path = self.random.choice(node.log_directories)
        await self._move(node, self._partition(), path)

    async def move_away(self, node: SimulatedNode, index: int) -> None:
        """A replica to the directory in which it is not."""
        partitions = {} if node.server is None else node.server.parts.replica_manager.partitions
        found = partitions.get(TopicPartition(TOPIC, index))
        if found is not None and found.log is not None:
            others = [each for each in node.log_directories if each != found.log.log_directory.path]
            await self._move(node, index, others[0])

    async def _move(self, node: SimulatedNode, index: int, path: str) -> None:
        self.world.note(f"move {TOPIC}-{index} of {node.host} to {path}")
        rows = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(TOPIC, [index])])]
        await self.send(AlterReplicaLogDirsRequest(rows), Node(node.broker_id))
