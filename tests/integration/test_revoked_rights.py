"""Rights that are revoked while requests wait, and between the requests of a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import decode_response
from ottla.protocol.message import Message
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.records.builder import build_batch
from tests.differential import share_scripts
from tests.differential.share_scripts import ONE
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript
from tests.doubles.wire import Wire

TOPIC, GROUP = 2, 3
ALLOW, DENY = 3, 2
ALL, READ = 2, 3
LITERAL = 3
REBALANCE_DELAY_MS = 2000
FETCH, JOIN, SYNC, SHARE_FETCH = 11, 7, 4, 1
JOIN_KEY, SYNC_KEY, SHARE_FETCH_KEY = 11, 14, 78


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(
        tmp_path,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        allow_everyone_if_no_acl_found="true",
        group_initial_rebalance_delay_ms=REBALANCE_DELAY_MS,
        group_coordinator_rebalance_protocols="classic,consumer,share",
    ) as started:
        yield started


def add_acl(wire: Wire, kind: int, name: str, operation: int, permission: int) -> None:
    creation = AclCreation(kind, name, LITERAL, "User:ANONYMOUS", "*", operation, permission)
    response: Any = wire.ask(CreateAclsRequest([creation]), 2)
    assert [each.error_code for each in response.results] == [0]


def remove_acls(wire: Wire, name: str) -> None:
    request = DeleteAclsRequest([DeleteAclsFilter(1, name, LITERAL, None, None, 1, 1)])
    response: Any = wire.ask(request, 2)
    assert response.filter_results[0].error_code == 0


def revoke(wire: Wire, kind: int, name: str) -> None:
    """READ is gone, and all else is still allowed."""
    add_acl(wire, kind, name, ALL, ALLOW)
    add_acl(wire, kind, name, READ, DENY)


def fetch(session_id: int = 0, epoch: int = -1, wait_ms: int = 20_000) -> FetchRequest:
    rows = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    topics = [] if session_id else [FetchTopic("t", bytes(16), rows)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics
    )


def received(wire: Wire, key: int, version: int) -> Any:
    return decode_response(wire.receive_frame(), key, version)[1]


def produce(wire: Wire) -> int:
    rows = [PartitionProduceData(0, build_batch([(0, None, b"value", None)]))]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData("t", rows)])
    response: Any = wire.ask(request, 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def create_topic(wire: Wire) -> None:
    request: Message = CreateTopicsRequest([CreatableTopic("t", 1, 1)], timeout_ms=10_000)
    response: Any = wire.ask(request, 5)
    assert response.topics[0].error_code == 0


def test_a_fetch_that_waits(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as consumer, Wire(broker.bootstrap) as other:
        create_topic(other)
        consumer.send(fetch(), FETCH)
        revoke(other, TOPIC, "t")
        assert produce(other) == 0
        response = received(consumer, 1, FETCH)
        (row,) = response.responses[0].partitions
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not row.records


def test_a_session_of_a_consumer(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as consumer, Wire(broker.bootstrap) as other:
        create_topic(other)
        assert produce(other) == 0
        first: Any = consumer.ask(fetch(epoch=0), FETCH)
        assert first.responses[0].partitions[0].records
        consumer.send(fetch(first.session_id, 1, wait_ms=3000), FETCH)
        revoke(other, TOPIC, "t")
        received(consumer, 1, FETCH)
        last: Any = consumer.ask(fetch(first.session_id, 2), FETCH)
        assert [row.error_code for topic in last.responses for row in topic.partitions] == [
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
        ]


def test_a_member_that_joins(broker: BrokerProcess) -> None:
    protocols = [JoinGroupRequestProtocol("range", b"subscription")]
    join = JoinGroupRequest("g", 10_000, 60_000, "", None, "consumer", protocols)
    with Wire(broker.bootstrap) as member, Wire(broker.bootstrap) as other:
        first: Any = None

        def has_coordinator() -> bool:
            nonlocal first
            other.ask(FindCoordinatorRequest("g", 0), 3)  # creates its topic
            first = member.ask(join, JOIN)
            return bool(first.error_code == ErrorCode.MEMBER_ID_REQUIRED)

        eventually(has_coordinator)
        join.member_id = first.member_id
        began = time.monotonic()
        member.send(join, JOIN)
        revoke(other, GROUP, "g")
        response = received(member, 11, JOIN)
        assert time.monotonic() - began > REBALANCE_DELAY_MS / 2000
        assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert response.members == []
        beat: Any = member.ask(HeartbeatRequest("g", 1, first.member_id), 3)
        assert beat.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("kind", [TOPIC, GROUP])
def test_a_share_fetch_that_waits_and_its_session(broker: BrokerProcess, kind: int) -> None:
    """What arrives after the revocation is not acquired: it is there when the right is back."""
    name = "t" if kind == TOPIC else "g"
    with Wire(broker.bootstrap) as member, Wire(broker.bootstrap) as other:
        create_topic(other)
        other.ask(FindCoordinatorRequest("g", 0), 3)  # creates its topic
        with Transcript(broker.bootstrap) as transcript:
            topic_id = share_scripts.begin(transcript, "g", ONE)
        first: Any = member.ask(share_scripts.fetch("g", ONE, 0, topic_id, max_wait_ms=0), 1)
        assert first.error_code == 0
        member.send(share_scripts.fetch("g", ONE, 1, max_wait_ms=20_000), SHARE_FETCH)
        revoke(other, kind, name)
        assert produce(other) == 0
        waited = received(member, SHARE_FETCH_KEY, SHARE_FETCH)
        again: Any = member.ask(share_scripts.fetch("g", ONE, 2, max_wait_ms=1000), SHARE_FETCH)
        for response in (waited, again):
            rows = [row for topic in response.responses for row in topic.partitions]
            if kind == GROUP:
                assert (response.error_code, rows) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
                continue
            (row,) = rows
            assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert not row.records
            assert row.acquired_records == []
        remove_acls(other, name)

        epoch = 2 if kind == GROUP else 3  # a request that is rejected changes no session

        def is_acquired() -> bool:
            nonlocal epoch
            last: Any = member.ask(share_scripts.fetch("g", ONE, epoch, max_wait_ms=1000), 1)
            epoch += last.error_code == 0
            rows = [row for topic in last.responses for row in topic.partitions]
            return any(row.acquired_records for row in rows)

        eventually(is_acquired, "the record stays locked")


def test_a_member_whose_sync_waits(broker: BrokerProcess) -> None:
    protocols = [JoinGroupRequestProtocol("range", b"subscription")]
    with (
        Wire(broker.bootstrap) as leader,
        Wire(broker.bootstrap) as follower,
        Wire(broker.bootstrap) as other,
    ):
        joins: list[Any] = [
            JoinGroupRequest("g", 10_000, 60_000, "", None, "consumer", protocols) for _ in range(2)
        ]
        members: list[Any] = []
        for wire, join in zip((leader, follower), joins, strict=True):

            def has_id(wire: Wire = wire, join: Any = join) -> bool:
                other.ask(FindCoordinatorRequest("g", 0), 3)  # creates its topic
                response: Any = wire.ask(join, JOIN)
                join.member_id = response.member_id
                return bool(response.error_code == ErrorCode.MEMBER_ID_REQUIRED)

            eventually(has_id)
        for wire, join in zip((leader, follower), joins, strict=True):
            wire.send(join, JOIN)
        members = [received(wire, JOIN_KEY, JOIN) for wire in (leader, follower)]
        leads, waits = leader, follower
        if members[1].leader == members[1].member_id:
            leads, waits = follower, leader
            members.reverse()
        waits.send(SyncGroupRequest("g", 1, members[1].member_id), SYNC)
        revoke(other, GROUP, "g")
        refused: Any = leads.ask(SyncGroupRequest("g", 1, members[0].member_id), SYNC)
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        # Nobody may lead the group any more: the follower's request ends with the session of its
        # leader, and tells nothing.
        response = received(waits, SYNC_KEY, SYNC)
        assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert response.assignment == b""
