"""The arguments tls, users and acls, and the settings of clients."""

from __future__ import annotations

import re
import ssl
from typing import Any, cast

import pytest

from ottla.broker.testing.security import ADMIN, Security
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED

USERS = {"alice": 's"e\\cret', "bob": "b"}


def config(security: Security, library: str, **named: Any) -> dict[str, Any]:
    named = {"user": None, "mechanism": "PLAIN", **named}
    return security.client_config(cast("Any", library), "127.0.0.1:1", **named)


def test_without_arguments_there_is_an_address_only() -> None:
    security = Security(False, None, None)
    assert security.settings() == {}
    assert config(security, "confluent") == {"bootstrap.servers": "127.0.0.1:1"}
    assert config(security, "java") == {"bootstrap.servers": "127.0.0.1:1"}
    assert config(security, "aiokafka") == {"bootstrap_servers": "127.0.0.1:1"}


def test_settings_of_each_library() -> None:
    security = Security(True, USERS, None)
    authority = security.settings()["ssl.truststore.location"]
    confluent = config(security, "confluent", mechanism="SCRAM-SHA-512")
    assert confluent == {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 's"e\\cret',
    }
    java = config(security, "java")
    assert java["ssl.truststore.location"] == authority
    assert java["sasl.jaas.config"].endswith('username="alice" password="s\\"e\\\\cret";')
    kafka_python = config(security, "kafka-python", user="bob")
    assert kafka_python["ssl_cafile"] == authority
    assert kafka_python["sasl_plain_username"] == "bob"
    assert isinstance(config(security, "aiokafka")["ssl_context"], ssl.SSLContext)


def test_the_brokers_have_a_user_who_may_do_everything() -> None:
    security = Security(False, {"alice": "s"}, {})
    assert security.settings()["super.users"] == f"User:{ADMIN}"
    password = config(security, "confluent", user=ADMIN)["sasl.password"]
    assert (
        password
        != config(Security(False, {"alice": "s"}, {}), "confluent", user=ADMIN)["sasl.password"]
    )
    given = Security(False, {"admin": "mine"}, None)
    assert config(given, "confluent", user=ADMIN)["sasl.password"] == "mine"


def test_rules() -> None:
    rules = ["READ topic:orders", "WRITE topic:out-*", "DENY READ group:*", "CREATE cluster"]
    security = Security(False, USERS, {"alice": rules})
    assert [(*resource, acl.permission_type) for resource, acl in security.acls] == [
        (LITERAL, "Topic", "orders", "Allow"),
        (PREFIXED, "Topic", "out-", "Allow"),
        (LITERAL, "Group", "*", "Deny"),
        (LITERAL, "Cluster", "kafka-cluster", "Allow"),
    ]


@pytest.mark.parametrize(
    ("users", "acls", "words"),
    [
        ({"a b": "x"}, None, "other characters"),
        (None, {}, "acls need users"),
        (USERS, {"alcie": ["READ topic:x"]}, "did you mean alice?"),
        (USERS, {"alice": ["REED topic:x"]}, "did you mean READ"),
        (USERS, {"alice": ["read topic:x"]}, "did you mean READ?"),
        (USERS, {"alice": ["READ,WRITE topic:x"]}, "write ['READ topic:x', 'WRITE topic:x']"),
        (USERS, {"alice": ["DENY READ,WRITE topic:x"]}, "['DENY READ topic:x', 'DENY WRITE t"),
        (USERS, {"alice": ["ALLOW READ topic:x"]}, "leave ALLOW out, 'READ topic:x' allows it"),
        (USERS, {"alice": ["READ topic: x"]}, "space after the colon it is 'READ topic:x'"),
        (USERS, {"alice": ["READ topic:x y"]}, "is not a rule: write it as"),
        (USERS, {"alice": ["READ topik:x"]}, "did you mean topic?"),
        (USERS, {"alice": ["READ topic:*orders"]}, "has no effect: a * is the whole name or"),
        (USERS, {"alice": ["READ group:a*b*"]}, "has no effect: a * is the whole name or"),
        (USERS, {"alice": ["READ topic:a,b"]}, "write one rule for each topic"),
        (USERS, {"alice": ["WRITE cluster"]}, "the operations of the kind cluster are CREATE"),
        (USERS, {"alice": ["WRITE group:a"]}, "the operations of the kind group are READ"),
        (USERS, {"alice": ["ALTER cluster:mine"]}, "write 'ALTER cluster'"),
        (USERS, {"alice": ["READ orders"]}, "write it as 'READ topic:orders'"),
        (USERS, {"alice": ["READ"]}, "write it as"),
        (USERS, {"alice": "READ topic:x"}, "expected a list of rules for alice"),
        (USERS, {"alice": None}, "expected a list of rules for alice"),
        (USERS, [("alice", [])], "acls: expected {name: "),
        ({}, None, "users: without a user nobody can log in: name one, such as users={"),
        (["alice"], None, "users: expected a dictionary, such as users={"),
        ({"alice": None}, None, "the password of alice is not text"),
    ],
)
def test_wrong_arguments(users: Any, acls: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Security(False, users, acls)


@pytest.mark.parametrize(
    ("library", "named", "words"),
    [
        ("confluent_kafka", {}, "did you mean confluent"),
        ("java", {"user": "alcie"}, "did you mean alice"),
        ("java", {"mechanism": "SCRAM-SHA-255"}, "did you mean SCRAM-SHA-256"),
    ],
)
def test_wrong_names(library: str, named: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(Security(False, USERS, None), library, **named)
    with pytest.raises(ValueError, match="it has no users"):
        config(Security(False, None, None), "java", user="alice")
