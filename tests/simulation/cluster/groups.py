"""Groups with several members, of both protocols, that share the partitions of a topic.

Each commits a number that grows over the whole simulation, for each partition that it owns. So a
commit that a member without the partition could make shows: an acknowledged one is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.client.operations import GROUP, CoordinatorOf, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.cluster.consumers import SESSION_MS, Consumer

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

# One in so many steps a member leaves, or is gone without a word and comes back as another.
LEAVES_ONE_IN = 60
CONSUMER_GROUP = "group-shared-consumer"
# Of a partition that the coordinator takes back, at each step: until then the member reads it.
GIVES_UP = 0.5
# Far above the session timeout, so that no member is removed because it gives up late.
REVOCATION_MS = 60_000
_LOST = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
)


class SharingMember(Consumer):
    """A member of the classic protocol; its leader assigns the partitions in turn."""

    kind = "sharing classic member"
    commit_versions = Versions(2, 7)

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        super().__init__(world, name, topic, partition)
        self.group = "group-shared-classic"
        self._forget()

    def _forget(self) -> None:
        self.member_id, self.epoch = "", -1
        self.owned: list[int] = []

    async def send(self, request: Any, versions: Versions) -> Any:
        return await self.client.call(
            request, CoordinatorOf(self.group), versions=versions, resend=False
        )

    async def step(self) -> None:
        if self.world.stopping:
            self.finished = True
        if self.random.randrange(LEAVES_ONE_IN) == 0:
            if self.epoch >= 0 and self.random.random() < 0.5:
                await self.leave()
            self._forget()
        if self.epoch < 0:
            await self.join()
        elif await self.beat() and self.owned and not self.world.stopping:
            self.finished = False
            await self.commit()
            self.finished = True

    async def commit(self) -> None:
        number = self.world.next_commit()
        rows = [OffsetCommitRequestPartition(each, number) for each in self.owned]
        request = OffsetCommitRequest(
            self.group,
            self.epoch,
            self.member_id,
            topics=[OffsetCommitRequestTopic(self.topic, rows)],
        )
        for partition in self.owned:
            self.world.history.offset_sent(self.group, self.topic, partition, number)
        response = await self.send(request, self.commit_versions)
        for row in response.topics[0].partitions:
            if row.error_code == ErrorCode.NONE:
                self.acknowledged += 1
                self.world.history.offset_committed_in(
                    self.group, self.topic, row.partition_index, number
                )
            else:
                self.failed(row.error_code)

    def failed(self, code: int) -> None:
        self.client.state.forget_coordinator(self.group, GROUP)
        if code in _LOST:
            self._forget()

    async def beat(self) -> bool:
        """Whether the assignment is still valid."""
        response = await self.send(
            HeartbeatRequest(self.group, self.epoch, self.member_id), Versions(0, 2)
        )
        code = response.error_code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.epoch = -1
        elif code:
            self.failed(code)
        return bool(code == ErrorCode.NONE)

    async def join(self) -> None:
        protocol = JoinGroupRequestProtocol("range", b"")
        request = JoinGroupRequest(
            self.group, SESSION_MS, SESSION_MS, self.member_id, None, "consumer", [protocol]
        )
        joined = await self.send(request, Versions(1, 3))
        if joined.error_code:
            self.member_id = ""
            self.failed(joined.error_code)
            return
        self.member_id = joined.member_id
        assignments = []
        if joined.leader == self.member_id:
            members = sorted(each.member_id for each in joined.members)
            for number, member in enumerate(members):
                shares = range(number, self.world.shape.partitions, len(members))
                assignments.append(SyncGroupRequestAssignment(member, bytes(shares)))
        synced = await self.send(
            SyncGroupRequest(
                self.group, joined.generation_id, self.member_id, assignments=assignments
            ),
            Versions(0, 2),
        )
        if synced.error_code:
            self.failed(synced.error_code)
            return
        self.epoch, self.owned = joined.generation_id, list(bytes(synced.assignment))

    async def leave(self) -> None:
        await self.send(LeaveGroupRequest(self.group, self.member_id), Versions(0, 2))


class SharingConsumerMember(SharingMember):
    """A member of the consumer protocol (KIP-848); the coordinator assigns the partitions."""

    kind = "sharing consumer member"
    commit_versions = Versions(9, 9)

    def __init__(self, world: World, name: str, topic: str, partition: int) -> None:
        super().__init__(world, name, topic, partition)
        self.group = CONSUMER_GROUP
        self.owners = world.owners

    def _forget(self) -> None:
        super()._forget()
        self.topic_id = b""
        #: What the coordinator has assigned; `owned` also has what is not given up yet.
        self.assigned: list[int] = []
        self.world.owners.forget(self)

    def failed(self, code: int) -> None:
        member_id = self.member_id
        super().failed(code)
        if code == ErrorCode.FENCED_MEMBER_EPOCH:
            self.member_id = member_id  # it joins again with epoch 0

    async def join(self) -> None:
        await self._beat(0)

    async def beat(self) -> bool:
        if self.random.random() < GIVES_UP:
            self.owned = [each for each in self.owned if each in self.assigned]
        return await self._beat(self.epoch)

    async def _beat(self, epoch: int) -> bool:
        owned = (
            [ConsumerGroupHeartbeatRequestTopicPartitions(self.topic_id, list(self.owned))]
            if self.topic_id and self.owned
            else []
        )
        request = ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            epoch,
            rebalance_timeout_ms=REVOCATION_MS,
            subscribed_topic_names=[self.topic],
            topic_partitions=owned if epoch else [],
        )
        sent_at = self.world.loop.now
        response = await self.send(request, Versions(0, 0))
        if response.error_code:
            self.failed(response.error_code)
            return False
        self.member_id, self.epoch = response.member_id or self.member_id, response.member_epoch
        if response.assignment is not None:
            self.assigned = []
            for topic in response.assignment.topic_partitions:
                self.topic_id = topic.topic_id
                self.assigned += topic.partitions
            given_up_later = [each for each in self.owned if each not in self.assigned]
            self.owned = self.assigned + given_up_later
        if self.epoch > 0:
            self.owners.answered(self, sent_at)
        return True

    async def leave(self) -> None:
        self.owned, self.assigned = [], []
        self.owners.forget(self)
        await self._beat(-1)
