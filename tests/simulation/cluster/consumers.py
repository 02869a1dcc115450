"""Consumers of a simulated cluster: a read_committed reader and members of both group protocols."""

from __future__ import annotations

import asyncio
import struct
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import (
    GROUP,
    CoordinatorOf,
    LeaderOf,
    Node,
    Route,
    Versions,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

REQUEST_MS = 4_000
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# One in so many responses an uncommitted reader begins to read another partition.
NEXT_ONE_IN = 20
SESSION_MS = 6_000
TRANSACTIONAL, CONTROL = 0x10, 0x20


class Consumer:
    """What all have: a client, and steps until the world abandons them."""

    kind = "consumer"

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        self.world = world
        self.name = name
        self.topic = topic
        self.partition = partition
        self.random = Random(f"{name} {world.seed}")
        self.client = AsyncClient(world.bootstrap, request_timeout_ms=REQUEST_MS, client_id=name)
        self.acknowledged = 0
        self.finished = True  # no check waits for it

    async def run(self) -> None:
        """Until the world is over."""
        while not self.world.abandoned:
            try:
                await self.step()
            except (ClientError, KafkaError):
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.random.uniform(0, self.world.pace_seconds))

    async def step(self) -> None:
        raise NotImplementedError


class TailReader(Consumer):
    """read_committed, from the start, sometimes slowly: no gap, nothing that was aborted."""

    kind = "reader"
    isolation_level = READ_COMMITTED

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        super().__init__(world, name, topic, partition)
        self.position = 0

    async def step(self) -> None:
        size = self.random.choice([200, 2_000, 100_000])
        position = self.position
        row = FetchPartition(self.partition, fetch_offset=position, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=size,
            isolation_level=self.isolation_level,
            topics=[FetchTopic(self.topic, partitions=[row])],
        )
        found = await self.fetch(request)
        if found is None or self.position != position:  # as a client that seeks meanwhile
            return
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and found.log_start_offset >= 0:
            self.position = max(self.position, found.log_start_offset)
        elif found.error_code:
            self.client.forget_leader(TopicPartition(self.topic, self.partition))
            await asyncio.sleep(0.2)
        elif found.records:
            self._take(found)

    async def fetch(self, request: FetchRequest) -> Any:
        """The partition of the response, or None."""
        where = TopicPartition(self.topic, self.partition)
        return await self._send(request, LeaderOf(where), Versions(4, 12))

    async def _send(self, request: FetchRequest, route: Route, versions: Versions) -> Any:
        response: Any = await self.client.call(request, route, versions=versions, resend=False)
        return response.responses[0].partitions[0] if response.responses else None

    def _take(self, found: Any) -> None:
        starts = sorted(
            (each.first_offset, each.producer_id) for each in found.aborted_transactions or []
        )
        aborted: dict[int, None] = {}
        for data in batches_in(bytes(found.records)):
            base, last = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 23)[0]
            producer_id, attributes = struct.unpack_from(">q", data, 43)[0], data[22]
            where = TopicPartition(self.topic, self.partition)
            if base > self.position and where not in self.world.with_gaps:
                self.world.complain(
                    f"{self.name}: after {self.position} comes the batch of {base} in "
                    f"{self.topic}-{self.partition}"
                )
            while starts and starts[0][0] <= base + last:
                aborted[starts.pop(0)[1]] = None
            if attributes & CONTROL:
                aborted.pop(producer_id, None)
            elif not (attributes & TRANSACTIONAL and producer_id in aborted):
                for record in read_records(data):
                    if record.offset >= self.position:
                        self.acknowledged += 1
                        self.world.history.consumed(
                            self.topic, self.partition, record.offset, bytes(record.value or b"")
                        )
            self.position = base + last + 1


class UncommittedReader(TailReader):
    """read_uncommitted: what it gets is below the high watermark, and so it stays."""

    kind = "uncommitted reader"
    isolation_level = READ_UNCOMMITTED

    def _take(self, found: Any) -> None:
        for data in batches_in(bytes(found.records)):
            base, last = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 23)[0]
            for record in read_records(data):
                if record.offset >= self.position:
                    self.acknowledged += 1
                    value = bytes(record.value or b"")
                    self.world.history.read(self.topic, self.partition, record.offset, value)
            self.position = base + last + 1
        if self.random.randrange(NEXT_ONE_IN) == 0:
            self.partition = self.random.randrange(self.world.shape.partitions)
            self.position = 0


class RackReader(TailReader):
    """Has a client.rack and fetches from the replica that the leader names (KIP-392)."""

    kind = "rack reader"
    # One in so many steps it reads from the start again: then it is behind every replica.
    SEEKS_ONE_IN = 40

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        super().__init__(world, name, topic, partition)
        self.rack = world.nodes[self.random.choice(list(world.nodes))].rack
        self.replica = -1

    def read_again(self) -> None:
        """From the start, and the leader chooses the replica."""
        self.position, self.replica = 0, -1

    async def step(self) -> None:
        if self.random.randrange(self.SEEKS_ONE_IN) == 0:
            self.position = 0
        await super().step()

    async def fetch(self, request: FetchRequest) -> Any:
        request.rack_id = self.rack
        replica = self.replica
        # As metadata.max.age.ms: a fetch goes to the leader now and then, and after every error.
        self.replica = -1
        if replica < 0:
            where = TopicPartition(self.topic, self.partition)
            found = await self._send(request, LeaderOf(where), Versions(11, 12))
            if found is not None and found.error_code == ErrorCode.NONE:
                self.replica = found.preferred_read_replica
                watch = self.world.watch
                if self.replica >= 0 and not watch.was_in_sync(
                    self.partition, self.replica, REQUEST_MS / 1000
                ):
                    self.world.complain(
                        f"{self.name} is sent to broker {self.replica}, which is not in the ISR"
                    )
            return found
        found = await self._send(request, Node(replica), Versions(11, 12))
        if found is None or found.error_code:
            return None  # also OFFSET_OUT_OF_RANGE: the leader decides
        if self.random.random() < 0.9:
            self.replica = replica
        return found


def batches_in(data: bytes) -> list[bytes]:
    """The whole batches at the start of what a fetch returned."""
    found, at = [], 0
    while at + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if at + size > len(data):
            break
        found.append(data[at : at + size])
        at += size
    return found


class GroupMember(Consumer):
    """Joins a group, commits growing offsets, and notes those that were acknowledged."""

    kind = "classic member"

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        super().__init__(world, name, topic, partition)
        self.group = f"group-{name}"
        self.member_id = ""
        self.epoch = -1
        self.committed = 0

    async def coordinator(self, request: Any, versions: Versions) -> Any:
        return await self.client.call(
            request, CoordinatorOf(self.group), versions=versions, resend=False
        )

    async def step(self) -> None:
        if self.epoch < 0 and not await self.join():
            self.epoch = -1
            await asyncio.sleep(0.3)
            return
        if self.world.stopping:
            self.finished = True
            await asyncio.sleep(0.5)
            return
        self.finished = False
        self.committed += 1
        rows = [OffsetCommitRequestPartition(self.partition, self.committed)]
        request = OffsetCommitRequest(
            self.group,
            self.epoch,
            self.member_id,
            topics=[OffsetCommitRequestTopic(self.topic, rows)],
        )
        history = self.world.history
        history.offset_sent(self.group, self.topic, self.partition, self.committed)
        response = await self.coordinator(request, self.commit_versions)
        code = response.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            self.acknowledged += 1
            history.offset_committed(self.name, self.committed)
        else:
            await self.heartbeat_or_rejoin(code)

    commit_versions = Versions(2, 7)

    async def heartbeat_or_rejoin(self, code: int) -> None:
        self.client.state.forget_coordinator(self.group, GROUP)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id = ""
            self.epoch = -1
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.epoch = -1
        else:
            await self.coordinator(
                HeartbeatRequest(self.group, self.epoch, self.member_id), Versions(0, 2)
            )

    async def join(self) -> bool:
        protocol = JoinGroupRequestProtocol("range", b"")
        request = JoinGroupRequest(
            self.group, SESSION_MS, SESSION_MS, self.member_id, None, "consumer", [protocol]
        )
        response = await self.coordinator(request, Versions(1, 3))
        if response.error_code:
            self.member_id = ""
            return False
        self.member_id, epoch = response.member_id, response.generation_id
        assignments = []
        if response.leader == self.member_id:
            assignments = [
                SyncGroupRequestAssignment(each.member_id, b"") for each in response.members
            ]
        response = await self.coordinator(
            SyncGroupRequest(self.group, epoch, self.member_id, assignments=assignments),
            Versions(0, 2),
        )
        if response.error_code:
            return False
        self.epoch = epoch
        return True


class ConsumerProtocolMember(GroupMember):
    """A member of KIP-848's protocol."""

    kind = "consumer member"
    commit_versions = Versions(9, 9)

    async def join(self) -> bool:
        return await self._beat(0)

    async def heartbeat_or_rejoin(self, code: int) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.epoch = -1
        else:
            await self._beat(self.epoch)

    async def _beat(self, epoch: int) -> bool:
        request = ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            epoch,
            rebalance_timeout_ms=SESSION_MS if epoch == 0 else -1,
            subscribed_topic_names=[self.topic] if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )
        response = await self.coordinator(request, Versions(0, 0))
        if response.error_code:
            self.epoch = -1
            return False
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch
        return True


MEMBERS = (GroupMember, ConsumerProtocolMember)
