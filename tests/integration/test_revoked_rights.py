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
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

TOPIC, GROUP = 2, 3
ALLOW, DENY = 3, 2
ALL, READ = 2, 3
LITERAL = 3
REBALANCE_DELAY_MS = 2000
FETCH, JOIN = 11, 7


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(
        tmp_path,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        allow_everyone_if_no_acl_found="true",
        group_initial_rebalance_delay_ms=REBALANCE_DELAY_MS,
    ) as started:
        yield started


def add_acl(wire: Wire, kind: int, name: str, operation: int, permission: int) -> None:
    creation = AclCreation(kind, name, LITERAL, "User:ANONYMOUS", "*", operation, permission)
    response: Any = wire.ask(CreateAclsRequest([creation]), 2)
    assert [each.error_code for each in response.results] == [0]


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
