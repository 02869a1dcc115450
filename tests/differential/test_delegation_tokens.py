"""Delegation tokens: the same requests to Apache Kafka and to us, by people and by tokens."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ottla.protocol.message import Message
from ottla.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.differential.asking import differences, plain
from tests.differential.guarded import Both
from tests.doubles.sasl_talk import SaslTalk

pytestmark = pytest.mark.kafka

TIMES = ("issue_timestamp", "expiry_timestamp", "max_timestamp")
OWN = frozenset({"token_id", "hmac", "throttle_time_ms", "unknown_tagged_fields"})
LOGINS = {"anna": b"\0anna\0s3cret", "bob": b"\0bob\0pass"}


class People:
    """Connections of people to one broker, and the responses to them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.connections: dict[str, SaslTalk] = {}
        self.responses: list[object] = []

    def ask(self, who: str, request: Message, version: int) -> Any:
        talk = self.connections.get(who)
        if talk is None:
            talk = self.connections[who] = SaslTalk(self.bootstrap)
            talk.plain(LOGINS[who])
        response = talk.wire.ask(request, version)
        self.responses.append(_without_times(plain(response, OWN)))
        return response

    def log_in(self, name: str, token: Any) -> None:
        """By a token, under a name for this test."""
        talk = self.connections[name] = SaslTalk(self.bootstrap)
        password = base64.b64encode(token.hmac).decode()
        talk.scram("SCRAM-SHA-256", token.token_id, password, ",tokenauth=true")
        self.responses.append(talk.notes)

    def close(self) -> None:
        for talk in self.connections.values():
            talk.wire.__exit__(None, None, None)


def _without_times(value: object) -> object:
    """Times by what they are after the first of them, coarsely: a busy machine takes its time."""
    if isinstance(value, list):
        return sorted((_without_times(each) for each in value), key=repr)
    if not isinstance(value, dict):
        return value
    found = {name: _without_times(each) for name, each in value.items()}
    for suffix in ("", "_ms"):
        begin = found.get(f"issue_timestamp{suffix}")
        if isinstance(begin, int) and begin > 0:
            for name in TIMES:
                found[name + suffix] = round((value[name + suffix] - begin) / 600_000)
            return found
    end = found.get("expiry_timestamp_ms")
    if isinstance(end, int) and end > 0:
        found["expiry_timestamp_ms"] = "a time"
    return found


def conversation(people: People) -> None:
    def create(who: str, version: int, **fields: Any) -> Any:
        return people.ask(who, CreateDelegationTokenRequest(**fields), version)

    def describe(who: str, *owners: str) -> Any:
        asked = [DescribeDelegationTokenOwner("User", owner) for owner in owners]
        return people.ask(who, DescribeDelegationTokenRequest(asked if owners else None), 3)

    def renew(who: str, secret: bytes, period_ms: int, version: int = 2) -> Any:
        return people.ask(who, RenewDelegationTokenRequest(secret, period_ms), version)

    def expire(who: str, secret: bytes, period_ms: int, version: int = 2) -> Any:
        return people.ask(who, ExpireDelegationTokenRequest(secret, period_ms), version)

    for version in range(4):
        people.ask("anna", DescribeDelegationTokenRequest(None), version)
    carl, group = CreatableRenewers("User", "carl"), CreatableRenewers("Group", "carl")
    create("anna", 1, renewers=[carl, group])
    first = create("anna", 0, renewers=[carl], max_lifetime_ms=-1)
    second = create("anna", 3, max_lifetime_ms=3_600_000)
    third = create(
        "bob",
        3,
        owner_principal_type="User",
        owner_principal_name="anna",
        renewers=[CreatableRenewers("User", "bob")],
        max_lifetime_ms=1 << 50,
    )
    for _ in range(2):
        describe("anna")
        describe("bob")
        describe("bob", "bob")
        describe("bob", "anna")
        describe("anna", "carl", "absent")
        people.ask("anna", DescribeDelegationTokenRequest([]), 1)
        people.ask("anna", DescribeDelegationTokenRequest(None), 2)
        renew("anna", third.hmac, 1_200_000)
        renew("bob", third.hmac, -1, 0)
        renew("bob", first.hmac, 1000)
        renew("bob", b"nothing", 1000)
        renew("anna", b"", 1000, 1)
        expire("bob", second.hmac, 1000)
        expire("anna", b"nothing", -1)
        expire("anna", second.hmac, 1_200_000, 0)
    people.log_in("by token", third)
    describe("by token")
    create("by token", 3)
    renew("by token", third.hmac, 1000)
    expire("by token", third.hmac, -1)
    people.log_in("wrong", second)
    expire("anna", third.hmac, -1)
    expire("anna", third.hmac, -1)
    people.log_in("too late", third)
    describe("anna")


def test_the_same_conversation(both: Both) -> None:
    found = []
    for bootstrap in (both.guarded.kafka, both.guarded.ottla):
        people = People(bootstrap)
        try:
            conversation(people)
        finally:
            people.close()
        found.append(people.responses)
    assert not differences(*found)
    assert found[0] == found[1]


def test_on_a_listener_without_authentication(both: Both) -> None:
    open_pair = both.open
    open_pair.compare(CreateDelegationTokenRequest(), range(4))
    open_pair.compare(RenewDelegationTokenRequest(), range(3))
    open_pair.compare(ExpireDelegationTokenRequest(), range(3))
    open_pair.compare(DescribeDelegationTokenRequest(), range(4))
