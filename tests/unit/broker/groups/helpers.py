"""A group coordinator with a log in memory and time by hand, and short ways to ask it things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.commits import Committer, FetchedOffset
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.verification import Verification
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer

T = TypeVar("T")

GROUP = "g"
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


class Setup:
    """One coordinator of one partition of the offsets topic, loaded and active."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        catalog: ClusterTopics | None = None,
        timer: ManualTimer | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        settings.setdefault("offsets_topic_num_partitions", 1)
        self.settings = GroupSettings(**settings)
        self.log = log or MemoryLog()
        self.timer = timer or ManualTimer()
        self.deferred: list[Callable[[], None]] = []
        self.coordinator = GroupCoordinator(
            self.settings, self.log, self.timer, self.timer.clock, self.deferred.append, catalog
        )
        self.coordinator.startup()
        self.elect()

    def elect(self, epoch: int = 0) -> None:
        for partition in range(self.settings.offsets_topic_num_partitions):
            self.coordinator.on_elected(partition, epoch)
        self.run_deferred()

    def run_deferred(self) -> None:
        while self.deferred:
            self.deferred.pop(0)()

    def group(self, group_id: str = GROUP) -> Group:
        group = self.coordinator.partitions.find(group_id)
        assert group is not None
        assert group.kind == "classic"
        return group

    # Requests.

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        version: int = 3,
        protocols: tuple[tuple[str, bytes], ...] = (("range", SUBSCRIPTION),),
        protocol_type: str = "consumer",
        group_id: str = GROUP,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        reason: str | None = None,
        client_id: str = "client",
    ) -> PendingResponse[JoinGroupResponse]:
        response: PendingResponse[JoinGroupResponse] = PendingResponse()
        self.coordinator.membership.join(
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocols=[JoinGroupRequestProtocol(name, data) for name, data in protocols],
                reason=reason,
            ),
            version,
            client_id,
            "/127.0.0.1",
            response,
        )
        return response

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        group_id: str = GROUP,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> PendingResponse[SyncGroupResponse]:
        response: PendingResponse[SyncGroupResponse] = PendingResponse()
        self.coordinator.membership.sync(
            SyncGroupRequest(
                group_id=group_id,
                generation_id=generation_id,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(known, data)
                    for known, data in (assignments or {}).items()
                ],
            ),
            response,
        )
        return response

    def heartbeat(
        self,
        member_id: str,
        generation_id: int,
        instance_id: str | None = None,
        group_id: str = GROUP,
    ) -> int:
        return self.coordinator.membership.heartbeat(
            HeartbeatRequest(group_id, generation_id, member_id, instance_id)
        )

    def leave(
        self, *members: tuple[str, str | None], group_id: str = GROUP
    ) -> tuple[int, list[int]]:
        response_callback: PendingResponse[LeaveGroupResponse] = PendingResponse()
        self.coordinator.membership.leave(
            group_id,
            [MemberIdentity(member_id, instance) for member_id, instance in members],
            response_callback,
        )
        response = response_callback.value
        return response.error_code, [member.error_code for member in response.members]

    def commit(
        self,
        offsets: dict[TopicPartition, int],
        member_id: str = "",
        generation_id: int = -1,
        *,
        instance_id: str | None = None,
        group_id: str = GROUP,
        metadata: str = "",
        expire_timestamp_ms: int = -1,
        producer_id: int | None = None,
        version: int = 8,
        guard: Verification | None = None,
    ) -> PendingResponse[dict[TopicPartition, int]]:
        response: PendingResponse[dict[TopicPartition, int]] = PendingResponse()
        now_ms = self.timer.clock.now_ms()
        values = {
            partition: CommittedOffset(offset, -1, metadata, now_ms, expire_timestamp_ms)
            for partition, offset in offsets.items()
        }
        committer = Committer(group_id, member_id, instance_id, generation_id, version)
        if producer_id is None:
            self.coordinator.commits.commit(committer, values, response)
            if response.is_pending:  # appended at the end of the iteration of the loop
                self.run_deferred()
        else:
            self.coordinator.commits.commit_transactional(
                committer, producer_id, 0, values, response, guard
            )
        return response

    def fetch(
        self,
        *partitions: TopicPartition,
        group_id: str = GROUP,
        require_stable: bool = False,
    ) -> dict[TopicPartition, FetchedOffset]:
        error, found = run_at_once(
            self.coordinator.commits.fetch(
                group_id, partitions or None, require_stable=require_stable
            )
        )
        assert error == ErrorCode.NONE
        return found

    def offset(self, partition: TopicPartition = T0, group_id: str = GROUP) -> int:
        return self.fetch(partition, group_id=group_id)[partition].value.offset

    # Whole steps.

    def stable_group(self, count: int = 1, *, instances: bool = False) -> list[str]:
        """A stable group of `count` members at generation 1 or 2; the first id leads."""
        first = self.join(instance_id="i0" if instances else None)
        member_ids = [first.value.member_id]
        responses = [first]
        if count > 1:
            self.sync(member_ids[0], first.value.generation_id)
            others = [
                self.join(instance_id=f"i{index}" if instances else None)
                for index in range(1, count)
            ]
            responses = [self.join(member_ids[0], instance_id="i0" if instances else None), *others]
        member_ids = [response.value.member_id for response in responses]
        generation_id = responses[0].value.generation_id
        leader = responses[0].value.leader
        assert leader == member_ids[0]
        syncs = [self.sync(member_id, generation_id) for member_id in member_ids[1:]]
        assignments = {member_id: member_id.encode() for member_id in member_ids}
        syncs.append(self.sync(leader, generation_id, assignments))
        assert [sync.value.error_code for sync in syncs] == [0] * count
        return member_ids


class PendingResponse(Generic[T]):
    """Takes one response; fails the test at a second one."""

    def __init__(self) -> None:
        self.values: list[T] = []

    def __call__(self, value: T) -> None:
        assert not self.values, f"two responses: {self.values[0]!r} and {value!r}"
        self.values.append(value)

    @property
    def is_pending(self) -> bool:
        return not self.values

    @property
    def value(self) -> T:
        assert self.values, "no response yet"
        return self.values[0]
