"""Decisions of the authorizer are kept until an ACL changes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.requests.request_context import Principal, RequestContext
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource

TOPIC = AclResource(LITERAL, "Topic", "t")
READ = Acl("User:alice", "Allow", "Read", "*")


def context(user: str = "alice", host: str = "10.0.0.1") -> RequestContext:
    route = SimpleNamespace(entry=SimpleNamespace(name="Fetch"))
    connection = SimpleNamespace(principal=Principal("User", user), client_host=host)
    return cast(
        "RequestContext",
        SimpleNamespace(
            connection=connection,
            principal=connection.principal,
            client_host=host,
            listener_name="SASL_SSL",
            route=route,
        ),
    )


class CountingRules(AclRules):
    lookups = 0

    def allows(self, *arguments: Any, **named: Any) -> bool:
        self.lookups += 1
        return super().allows(*arguments, **named)


def reads(authorizer: Authorizer, user: str = "alice", host: str = "10.0.0.1") -> bool:
    return authorizer.allows(context(user, host), Operation.READ, ResourceType.TOPIC, "t")


def test_the_same_question_is_looked_up_once() -> None:
    rules = CountingRules()
    authorizer = Authorizer(rules, SecurityLog(None))
    rules.replace(TOPIC, [READ])
    assert [reads(authorizer) for _ in range(10)] == [True] * 10
    assert rules.lookups == 1
    # Another principal, another address: other questions.
    assert not reads(authorizer, user="bob")
    assert reads(authorizer, host="10.0.0.2")
    assert rules.lookups == 3


def test_each_change_of_an_acl_is_in_force_at_once() -> None:
    rules = AclRules()
    authorizer = Authorizer(rules, SecurityLog(None))
    assert not reads(authorizer)
    rules.replace(TOPIC, [READ])
    assert reads(authorizer)
    prefix = AclResource(PREFIXED, "Topic", "")
    rules.replace(prefix, [READ._replace(permission_type="Deny")])
    assert not reads(authorizer)
    rules.replace(prefix, [])
    assert reads(authorizer)
    rules.replace(TOPIC, [READ._replace(host="10.0.0.2")])
    assert not reads(authorizer)
    assert reads(authorizer, host="10.0.0.2")


def test_reading_the_same_acls_again_keeps_the_decisions() -> None:
    rules = CountingRules()
    authorizer = Authorizer(rules, SecurityLog(None))
    rules.replace(TOPIC, [READ])
    assert reads(authorizer)
    rules.replace(TOPIC, [READ])
    assert reads(authorizer)
    assert rules.lookups == 1


def test_any_resource_of_a_type() -> None:
    rules = AclRules()
    authorizer = Authorizer(rules, SecurityLog(None), frozenset({"User:root"}))
    alice = context()
    for _ in range(2):
        assert not authorizer.allows_any(alice, Operation.READ, ResourceType.TOPIC)
        assert authorizer.allows_any(context("root"), Operation.READ, ResourceType.TOPIC)
    rules.replace(TOPIC, [READ])
    assert authorizer.allows_any(alice, Operation.READ, ResourceType.TOPIC)
    assert not authorizer.allows_any(alice, Operation.WRITE, ResourceType.TOPIC)


def test_denials_are_written_and_at_debug_what_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    rules = AclRules()
    authorizer = Authorizer(rules, SecurityLog(None))
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    assert not reads(authorizer)
    assert not authorizer.allows(
        context(), Operation.READ, ResourceType.TOPIC, "t", log_if_denied=False
    )
    rules.replace(TOPIC, [READ])
    assert reads(authorizer)
    assert [record.getMessage() for record in caplog.records] == [
        "Principal = User:alice is Denied Operation = Read from host = 10.0.0.1 on resource = "
        "Topic:t for request = Fetch"
    ]
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    assert reads(authorizer)
    assert "Principal = User:alice is Allowed Operation = Read" in caplog.text
