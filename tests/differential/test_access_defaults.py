"""`allow.everyone.if.no.acl.found` beside Apache Kafka: which ACLs count as found.

A prefixed ACL and one of `*` do, for every resource that they match, also if they allow another
user only. What is compared is whether a request is allowed, not what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

pytestmark = [pytest.mark.kafka]

TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, DESCRIBE = 2, 3, 4, 8
DENY, ALLOW = 2, 3
ME, OTHER, ALL_USERS = "User:ANONYMOUS", "User:anna", "User:*"

ACLS = (
    AclCreation(TOPIC, "team-", PREFIXED, OTHER, "*", ALL, ALLOW),
    AclCreation(TOPIC, "mine-", PREFIXED, ME, "*", READ, ALLOW),
    AclCreation(TOPIC, "mine-secret", LITERAL, ME, "*", READ, DENY),
    AclCreation(TOPIC, "host-", PREFIXED, ALL_USERS, "10.9.9.9", ALL, ALLOW),
    AclCreation(TOPIC, "deny-", PREFIXED, ALL_USERS, "*", WRITE, DENY),
    AclCreation(TOPIC, "deny-not", LITERAL, ME, "*", ALL, ALLOW),
    AclCreation(TOPIC, "CN=a\\,b,O=x", PREFIXED, "User:CN=a\\,b,O=x", "*", ALL, ALLOW),
    AclCreation(GROUP, "g-", PREFIXED, OTHER, "*", READ, ALLOW),
    AclCreation(GROUP, "mine-", PREFIXED, ME, "*", READ, ALLOW),
    AclCreation(TRANSACTIONAL_ID, "*", LITERAL, OTHER, "*", ALL, ALLOW),
    AclCreation(TRANSACTIONAL_ID, "tx-", PREFIXED, ME, "*", DESCRIBE, ALLOW),
)
TOPICS = (
    *("team-a", "team-", "team", "mine-a", "mine-secret", "mine-secret2", "host-a", "deny-a"),
    *("deny-not", "deny-not2", "other"),
)
REFUSED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class Both(NamedTuple):
    kafka: str
    ottla: str

    def is_allowed(self, request: Message, version: int) -> bool:
        found = []
        for address in self:
            with Wire(address) as wire:
                found.append(_code(wire.ask(request, version)) not in REFUSED)
        assert found[0] == found[1], found
        return found[1]


def _code(response: Any) -> int:
    """The only error code of a response."""
    rows = getattr(response, "responses", None)
    if rows is None:
        return int(response.error_code)
    row = rows[0]
    partitions = getattr(row, "partitions", None) or row.partition_responses
    return int(partitions[0].error_code)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    settings: dict[str, object] = {
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "allow_everyone_if_no_acl_found": "true",
    }
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **settings) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), **settings) as ottla,
    ):
        found = Both(kafka.bootstrap, ottla.bootstrap)
        for address in found:
            with Wire(address) as wire:
                new = [CreatableTopic(name, 1, 1) for name in TOPICS]
                wire.ask(CreateTopicsRequest(new, timeout_ms=30_000), 5)
                created: Any = wire.ask(CreateAclsRequest(list(ACLS)), 2)
                assert {each.error_code for each in created.results} == {0}
                # Kafka takes them a moment after its response.
                last = FindCoordinatorRequest("no", 1)
                eventually(lambda: _code(wire.ask(last, 3)) in REFUSED)  # noqa: B023
        yield found


def fetch(topic: str) -> FetchRequest:
    rows = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    return FetchRequest(session_epoch=-1, topics=[FetchTopic(topic, bytes(16), rows)])


def produce(topic: str) -> ProduceRequest:
    rows = [PartitionProduceData(0, build_batch([(0, None, b"value", None)]))]
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(topic, rows)])


READABLE = {"team", "mine-a", "mine-secret2", "deny-not", "other"}
WRITABLE = {"team", "other"}


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(both: Both, topic: str) -> None:
    assert both.is_allowed(fetch(topic), 11) is (topic in READABLE)
    assert both.is_allowed(produce(topic), 9) is (topic in WRITABLE)


@pytest.mark.parametrize(("group", "expected"), [("g-1", False), ("mine-1", True), ("x", True)])
def test_groups(both: Both, group: str, expected: bool) -> None:
    assert both.is_allowed(HeartbeatRequest(group, 1, "m"), 3) is expected


@pytest.mark.parametrize(("name", "expected"), [("tx-1", True), ("other", False)])
def test_transactional_ids(both: Both, name: str, expected: bool) -> None:
    assert both.is_allowed(FindCoordinatorRequest(name, 1), 3) is expected
