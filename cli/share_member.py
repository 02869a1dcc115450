"""`ottla consume --share-group G`: a member of a share group (KIP-932), in one thread.

It joins, acquires records of its share partitions, acknowledges them when they are printed, sends
heartbeats between fetches, and at the end closes its share sessions and leaves. What is acquired
and not acknowledged then is available to other members at once.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

from ottla.cli.output import Failure, note
from ottla.cli.reader import MAX_WAIT_MS
from ottla.cli.session import Session, check
from ottla.cli.share_group_requests import share_groups_enabled
from ottla.cli.share_session import (
    MAX_RECORDS,
    AcknowledgeType,
    AcquiredRecord,
    SharePartition,
    ShareSession,
)
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import CoordinatorOf
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

_LEAVE_EPOCH = -1
_JOIN_EPOCH = 0

# The coordinator has removed the member: it joins again.
_STALE = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH))

# Rounds without a record after which the command ends without --follow: a broker that has just
# loaded a share partition has none in the first.
_EMPTY_ROUNDS = 2


class ShareMember:
    """One member that reads one topic. Its share sessions are with the leaders of partitions."""

    def __init__(self, session: Session, group: str, topic: str) -> None:
        self._session = session
        self._coordinator = CoordinatorOf(group)
        self._group = group
        self._topic = topic
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOIN_EPOCH
        self._heartbeat_due = 0.0
        self._assigned: frozenset[SharePartition] = frozenset()
        self._sessions: dict[int, ShareSession] = {}

    def join(self) -> None:
        """Joins, and waits until partitions are assigned; raises Failure after the timeout."""
        deadline = time.monotonic() + self._session.timeout_ms / 1000
        with share_groups_enabled():
            self._heartbeat()
        while not self._assigned:
            if time.monotonic() > deadline:
                raise Failure(
                    f"share group {self._group}: no partition of {self._topic} was assigned in "
                    f"{self._session.timeout_ms} ms; see `ottla share-groups describe "
                    f"{self._group} --members`."
                )
            time.sleep(MAX_WAIT_MS / 1000)
            self._heartbeat()

    def poll(self, max_records: int) -> Iterator[tuple[ShareSession, list[AcquiredRecord]]]:
        """One fetch from each leader, with the session to acknowledge with."""
        if time.monotonic() >= self._heartbeat_due:
            self._heartbeat()
        by_leader: dict[int, set[SharePartition]] = {node: set() for node in self._sessions}
        for where in self._assigned:
            leader = self._session.client.leader(TopicPartition(self._topic, where.partition))
            by_leader.setdefault(leader.node_id, set()).add(where)
        for node_id, partitions in by_leader.items():
            if node_id not in self._sessions:
                self._sessions[node_id] = ShareSession(
                    self._session, node_id, self._group, self._member_id
                )
            session = self._sessions[node_id]
            wait_ms = MAX_WAIT_MS // len(by_leader)
            records, moved = session.fetch(frozenset(partitions), max_records, wait_ms)
            for where in moved:
                moved_from = TopicPartition(self._topic, where.partition)
                self._session.client.forget_leader(moved_from)
            yield session, records

    def leave(self) -> None:
        """Ends the sessions and leaves; a broker that cannot be reached does so after a while."""
        for session in self._sessions.values():
            with suppress(ClientError, KafkaError):
                session.close()
        if self._epoch > _JOIN_EPOCH:
            with suppress(ClientError, KafkaError):
                self._send(_LEAVE_EPOCH)

    def _heartbeat(self) -> None:
        response = self._send(self._epoch)
        if response.error_code in _STALE:
            self._epoch, self._assigned = _JOIN_EPOCH, frozenset()
            response = self._send(self._epoch)
        check(response.error_code, f"share group {self._group}", response.error_message)
        self._epoch = response.member_epoch
        self._heartbeat_due = time.monotonic() + response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self._assigned = frozenset(
                SharePartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )

    def _send(self, epoch: int) -> ShareGroupHeartbeatResponse:
        topics = [self._topic] if epoch == _JOIN_EPOCH else None
        request = ShareGroupHeartbeatRequest(
            self._group, self._member_id, epoch, subscribed_topic_names=topics
        )
        return self._session.call(ShareGroupHeartbeatResponse, request, self._coordinator)


def consume_shared(
    session: Session,
    group: str,
    topic: str,
    show: Callable[[str, int, Record], bytes],
    limit: int | None,
    kind: AcknowledgeType,
    *,
    follow: bool,
) -> None:
    """Prints and acknowledges records until none are left, Ctrl-C or the limit.

    A record is acknowledged after it is written to standard output. With RELEASE the records are
    locked until the end of the command, so that each is printed once.
    """
    member = ShareMember(session, group, topic)
    out = sys.stdout.buffer
    written = empty_rounds = lost = 0
    try:
        member.join()
        while written != limit and (follow or empty_rounds < _EMPTY_ROUNDS):
            empty_rounds += 1
            left = MAX_RECORDS if limit is None else min(MAX_RECORDS, limit - written)
            for share_session, records in member.poll(left):
                printed: list[AcquiredRecord] = []
                try:
                    for item in records[: None if limit is None else limit - written]:
                        out.write(show(topic, item.where.partition, item.record))
                        printed.append(item)
                finally:
                    try:
                        out.flush()
                        # Only now: what cannot be written to the output is delivered again.
                        if kind != AcknowledgeType.RELEASE:
                            for item in printed:
                                share_session.set_type(item, kind)
                    finally:
                        if records and kind != AcknowledgeType.RELEASE:
                            lost += share_session.acknowledge()
                written += len(printed)
                empty_rounds = 0 if records else empty_rounds
                if written == limit:
                    break
    except KeyboardInterrupt:
        note("")
    finally:
        member.leave()
    if lost:
        note(f"{lost} records are delivered again: they were locked for too long.")
