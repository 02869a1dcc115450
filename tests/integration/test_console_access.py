"""Who may use a topic on the console: ACLs by name, by prefix and of all names, super users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.testing import Broker
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually

ACLS = {
    "literal": {"principal": "User:alice", "name": "orders-eu", "operation": "READ"},
    "prefix": {"principal": "User:bob", "name": "orders-", "pattern": "PREFIXED",
               "operation": "READ"},
    "wildcard": {"principal": "User:*", "name": "*", "operation": "DESCRIBE"},
    "denied": {"principal": "User:mallory", "name": "*", "operation": "ALL", "permission": "DENY"},
    "other": {"principal": "User:carol", "name": "orders-us", "operation": "READ"},
    "star": {"principal": "User:dave", "name": "*", "pattern": "PREFIXED", "operation": "READ"},
    "group": {"principal": "User:erin", "name": "orders-eu", "resource": "GROUP",
              "operation": "READ"},
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[ConsoleClient]:
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS;User:CN=admin,O=us",
        allow_everyone_if_no_acl_found=True,
    ) as broker:
        broker.create_topic("orders-eu")
        page = ConsoleClient(broker.server.metrics_port)
        for each in ACLS.values():
            page.act("acl/create", **{"resource": "TOPIC", **each})
        eventually(lambda: len(page.get("security")["acls"]) == len(ACLS))
        yield page


def principals(found: dict[str, Any]) -> list[str]:
    return [each["principal"].removeprefix("User:") for each in found["acls"]]


def test_every_acl_that_applies_to_a_topic_is_shown(page: ConsoleClient) -> None:
    found = page.get("access?resource=TOPIC&name=orders-eu")
    # What is denied decides first.
    assert principals(found) == ["mallory", "*", "alice", "bob"]
    assert principals(page.get("access?resource=TOPIC&name=payments")) == ["mallory", "*"]
    assert principals(page.get("access?resource=TOPIC&name=*x")) == ["mallory", "*", "dave"]
    assert principals(page.get("access?resource=GROUP&name=orders-eu")) == ["erin"]
    none = page.get("access?resource=GROUP&name=Orders-eu")
    assert (none["acls"], none["everyone"]) == ([], True)
    assert page.send("GET", "access?resource=ALL&name=x")[0] == 400


def test_super_users_are_named(page: ConsoleClient) -> None:
    for found in (page.get("security"), page.get("access?resource=TOPIC&name=orders-eu")):
        assert found["super_users"] == ["User:ANONYMOUS", "User:CN=admin,O=us"]
        assert (found["everyone"], found["problems"]) == (True, [])


def test_a_search_finds_what_applies_to_a_name(page: ConsoleClient) -> None:
    def search(text: str) -> set[str]:
        return set(principals(page.get(f"security?search={text}")))

    assert search("ORDERS-eu") == {"alice", "bob", "erin", "*", "mallory"}
    assert search("orders-eu-2") == {"bob", "*", "mallory"}
    assert search("payments") == {"*", "mallory"}
    assert search("alice") >= {"alice", "*"}


def test_without_an_authorizer_or_a_right_it_says_so() -> None:
    settings = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    with Broker(**settings) as broker:
        found = ConsoleClient(broker.server.metrics_port).get("access?resource=TOPIC&name=x")
        assert "has no authorizer" in found["no_acls"]
    with Broker(
        **settings,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
        ottla_console_principal="User:console",
    ) as broker:
        found = ConsoleClient(broker.server.metrics_port).get("access?resource=TOPIC&name=x")
        assert "need an ACL for DESCRIBE on the cluster" in found["no_acls"]
        assert found["super_users"] is None
        # Which right is missing, and the command that gives it; none of a name that is not there.
        given = {"topic": "made", "partition": 0, "key": None, "value": "x", "headers": []}
        broker.create_topic("made")
        page = ConsoleClient(broker.server.metrics_port)
        for action, body, right in (
            ("record/produce", given, "WRITE on TOPIC made"),
            ("topic/create", {"name": "new", "partitions": 1, "replication_factor": 1,
                              "configs": {}}, "CREATE on TOPIC new"),
        ):  # fmt: skip
            status, error = page.send("POST", action, body)
            assert status == 403
            assert f"User:console (ottla.console.principal) has no ACL for {right}; " in str(error)
            assert "`ottla acls add --allow User:console --operation" in str(error)
