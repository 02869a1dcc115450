"""A connection that produces to the same topics is checked once, until something changes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.audit.repeats import LINES_OF_ADDRESS
from ottla.broker.security.audit.security_log import SecurityLog, decisions
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.broker.security.authorization.data_guard import (
    LONGEST_NAME,
    MAX_WRITABLE_TOPICS,
    DataGuard,
)
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import ProduceRequest, TopicProduceData
from ottla.protocol.registry import ApiKey
from tests.doubles.api_routes import entry_of

ALLOW = Acl("User:anna", "Allow", "Write", "*")
DENY = Acl("User:anna", "Deny", "Write", "*")


class Broker:
    """The guarded line of Produce, and connections of one user."""

    def __init__(self) -> None:
        self.rules = AclRules()
        self.rules.replace(AclResource(PREFIXED, "Topic", "team-"), [ALLOW])
        self.checks = 0
        self.handled: list[list[str]] = []
        self.log = SecurityLog(None)
        authorizer = Authorizer(self.rules, self.log)
        guard = DataGuard(authorizer, MetadataCache(), auto_create=True)
        check = guard.produce

        def counted(context: Any, request: Any) -> None:
            self.checks += 1
            check(context, request)

        guard.produce = counted  # type: ignore[method-assign]
        entry = entry_of(ApiKey.PRODUCE, self._handle)
        self.entry = guard.protect_produce(entry)

    def _handle(self, _: Any, request: Any) -> None:
        self.handled.append([topic.name for topic in request.topic_data])

    def connect(self) -> Any:
        return SimpleNamespace(
            principal=Principal("User", "anna"),
            client_host="127.0.0.1",
            client_port=50_000,
            listener_name="PLAINTEXT",
            writable_topics=None,
        )

    def produce(self, connection: Any, *topics: str, transactional_id: str | None = None) -> None:
        context = SimpleNamespace(
            connection=connection,
            principal=connection.principal,
            client_host=connection.client_host,
            client_port=connection.client_port,
            listener_name=connection.listener_name,
            header=SimpleNamespace(api_key=ApiKey.PRODUCE, api_version=9),
            route=SimpleNamespace(entry=self.entry),
            amend=None,
        )
        data = [TopicProduceData(topic, []) for topic in topics]
        self.entry.handler(cast(Any, context), ProduceRequest(transactional_id, 1, 1000, data))


def test_a_topic_is_checked_once_for_a_connection() -> None:
    broker = Broker()
    first, second = broker.connect(), broker.connect()
    for _ in range(3):
        broker.produce(first, "team-a")
    assert broker.checks == 1
    broker.produce(first, "team-b")
    broker.produce(second, "team-a")
    assert broker.checks == 3
    assert broker.handled == [["team-a"]] * 3 + [["team-b"], ["team-a"]]


def test_a_changed_acl_counts_at_once() -> None:
    broker = Broker()
    connection = broker.connect()
    broker.produce(connection, "team-a")
    broker.rules.replace(AclResource(LITERAL, "Topic", "team-a"), [DENY])
    broker.produce(connection, "team-a")
    assert broker.handled == [["team-a"], []]
    broker.rules.replace(AclResource(LITERAL, "Topic", "team-a"), [])
    broker.produce(connection, "team-a")
    assert broker.handled[2:] == [["team-a"]]


def test_denials_are_checked_and_logged_each_time() -> None:
    broker = Broker()
    connection = broker.connect()
    for _ in range(2):
        broker.produce(connection, "other")
    assert broker.checks == 2
    assert broker.handled == [[], []]
    assert not connection.writable_topics


def test_several_topics_and_transactions_are_checked_as_usual() -> None:
    broker = Broker()
    connection = broker.connect()
    broker.produce(connection, "team-a")
    broker.produce(connection, "team-a", "other")
    assert broker.handled == [["team-a"], ["team-a"]]
    with pytest.raises(KafkaError) as caught:
        broker.produce(connection, "team-a", transactional_id="t")
    assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_what_is_allowed_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    connection = broker.connect()
    broker.produce(connection, "team-a")
    with caplog.at_level(logging.DEBUG, decisions.name):
        for _ in range(2):
            broker.produce(connection, "team-a")
    assert len([record for record in caplog.records if record.name == decisions.name]) == 2


def test_what_is_kept_is_bounded() -> None:
    broker = Broker()
    connection = broker.connect()
    for number in range(3 * MAX_WRITABLE_TOPICS):
        broker.produce(connection, f"team-{number}")
        assert len(connection.writable_topics) <= MAX_WRITABLE_TOPICS
    broker.produce(connection, "team-" + "x" * LONGEST_NAME)
    assert max(map(len, connection.writable_topics)) <= LONGEST_NAME


def test_of_very_many_denials_some_are_logged_and_the_rest_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    broker = Broker()
    count = 5 * LINES_OF_ADDRESS
    broker.produce(broker.connect(), "team-a", *(f"other-{number}" for number in range(count)))
    assert broker.handled == [["team-a"]]
    lines = [record for record in caplog.records if record.name == decisions.name]
    assert len(lines) == LINES_OF_ADDRESS
    caplog.clear()
    broker.log.flush()
    (line,) = caplog.messages
    assert f"Suppressed {count - LINES_OF_ADDRESS} more lines" in line
