"""`ottla consume --group G --follow`: a member of a classic consumer group, in one thread.

It joins, reads its assigned partitions, sends heartbeats between fetches, commits every few
seconds and before it rejoins, and leaves at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from ottla.cli.group_positions import committed
from ottla.cli.offsets import EARLIEST, LATEST, offsets_at
from ottla.cli.output import note
from ottla.cli.reader import MAX_WAIT_MS, IdleTimer, TopicReader
from ottla.cli.session import Session, check
from ottla.protocol.assignors import ASSIGNORS
from ottla.protocol.client.operations import CoordinatorOf, Versions
from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.records.record import Record
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_SECONDS = 3.0
COMMIT_SECONDS = 5.0
PROTOCOLS = ("range", "roundrobin")  # most other consumers support them too

# Generation or member id are stale: the member rejoins.
_STALE = frozenset(
    (
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
)


class GroupMember:
    """One member that reads one topic."""

    def __init__(self, session: Session, group: str, topic: str) -> None:
        self._session = session
        self._coordinator = CoordinatorOf(group)
        self._group = group
        self._topic = topic
        self._member_id = ""
        self._generation = -1
        self._heartbeat_due = 0.0
        # The response arrives after at most this time, before the request timeout of this client.
        self._rebalance_timeout_ms = max(session.timeout_ms * 2 // 3, 1)

    def join(self) -> list[TopicPartition]:
        """Rejoins until a rebalance completes; returns the assigned partitions."""
        while True:
            joined = self._join()
            if joined is None:
                continue
            assignments = []
            if joined.leader == self._member_id:
                assignments = self._assign(joined)
            response = self._session.call(
                SyncGroupResponse,
                SyncGroupRequest(
                    self._group,
                    self._generation,
                    self._member_id,
                    protocol_type="consumer",
                    protocol_name=joined.protocol_name,
                    assignments=assignments,
                ),
                self._coordinator,
            )
            if self._is_stale(response.error_code):
                continue
            check(response.error_code, f"group {self._group}")
            self._heartbeat_due = time.monotonic() + HEARTBEAT_SECONDS
            return decode_assignment(response.assignment).partitions if response.assignment else []

    def _join(self) -> JoinGroupResponse | None:
        """None when the request is to be retried, with a new member id or without one."""
        metadata = encode_subscription(Subscription([self._topic]))
        response = self._session.call(
            JoinGroupResponse,
            JoinGroupRequest(
                self._group,
                SESSION_TIMEOUT_MS,
                self._rebalance_timeout_ms,
                self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name, metadata) for name in PROTOCOLS],
            ),
            self._coordinator,
        )
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            return None
        if self._is_stale(response.error_code):
            return None
        check(response.error_code, f"group {self._group}")
        self._member_id, self._generation = response.member_id, response.generation_id
        return response

    def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        subscriptions = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in joined.members
        }
        topics = sorted({topic for found in subscriptions.values() for topic in found.topics})
        rows = self._session.metadata(topics).topics
        counts = {row.name: len(row.partitions) for row in rows if row.name and not row.error_code}
        found = run_at_once(ASSIGNORS[joined.protocol_name or PROTOCOLS[0]](counts, subscriptions))
        return [
            SyncGroupRequestAssignment(member_id, encode_assignment(Assignment(partitions)))
            for member_id, partitions in found.items()
        ]

    def is_current(self) -> bool:
        """Whether the assignment is current; sends a heartbeat when one is due."""
        if time.monotonic() < self._heartbeat_due:
            return True
        request = HeartbeatRequest(self._group, self._generation, self._member_id)
        response = self._session.call(HeartbeatResponse, request, self._coordinator)
        if response.error_code in _STALE:
            if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            return False
        check(response.error_code, f"group {self._group}")
        self._heartbeat_due = time.monotonic() + HEARTBEAT_SECONDS
        return True

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commits as a member of this generation; ignores the errors of a stale one."""
        if not positions or not self._member_id:
            return
        rows = [
            OffsetCommitRequestPartition(item.partition, offset, committed_metadata="")
            for item, offset in positions.items()
        ]
        request = OffsetCommitRequest(
            self._group,
            self._generation,
            self._member_id,
            topics=[OffsetCommitRequestTopic(self._topic, rows)],
        )
        response = self._session.call(OffsetCommitResponse, request, self._coordinator)
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code not in _STALE:
                    check(row.error_code, f"group {self._group}")

    def leave(self) -> None:
        """Leaves at once, so that the group does not wait for the session timeout."""
        if self._member_id:
            leaving = MemberIdentity(self._member_id, reason="the consumer ended")
            request = LeaveGroupRequest(self._group, members=[leaving])
            self._session.call(LeaveGroupResponse, request, self._coordinator, versions=Versions(3))

    def _is_stale(self, code: int) -> bool:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        return code in _STALE


def follow_as_member(
    session: Session,
    group: str,
    topic: str,
    show: Callable[[str, int, Record], bytes],
    wanted: Callable[[Record], bool],
    limit: int | None,
    *,
    from_beginning: bool,
    read_committed: bool,
    idle_seconds: float | None = None,
) -> None:
    """Reads the assigned partitions until Ctrl-C, the limit, or no record comes for so long."""
    member = GroupMember(session, group, topic)
    out = sys.stdout.buffer
    written = 0
    reader: TopicReader | None = None
    try:
        with session.waiting_for_cluster():
            idle = IdleTimer(None)  # the time until the first assignment does not count
            while written != limit and not idle.is_over:
                partitions = member.join()
                note(f"reading {topic}, partitions {sorted(item.partition for item in partitions)}")
                begin = EARLIEST if from_beginning else LATEST
                positions = offsets_at(session, partitions, begin) if partitions else {}
                positions |= committed(session, group, partitions)
                reader = TopicReader(session, positions, None, read_committed=read_committed)
                commit_due = time.monotonic() + COMMIT_SECONDS
                idle = IdleTimer(idle_seconds)
                while written != limit and not idle.is_over and member.is_current():
                    if not partitions:
                        time.sleep(MAX_WAIT_MS / 1000)  # more members than partitions
                    for item, record in reader.one_round():
                        if wanted(record):
                            with reader.processing(item, record):
                                out.write(show(item.topic, item.partition, record))
                            written += 1
                            if written == limit:
                                break
                        idle.restart()
                    out.flush()
                    if time.monotonic() >= commit_due:
                        member.commit(reader.positions)
                        commit_due = time.monotonic() + COMMIT_SECONDS
                member.commit(reader.positions)
    except KeyboardInterrupt:
        note("")
        out.flush()  # what cannot be written is not committed
        if reader is not None:
            member.commit(reader.positions)
    finally:
        member.leave()
