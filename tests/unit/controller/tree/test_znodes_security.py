"""Paths and payloads of ACLs and delegation tokens."""

from __future__ import annotations

import json

import pytest

from ottla.controller.tree import znodes_security
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_security import Acl, AclResource, TokenInformation

LITERAL = AclResource("literal", "TransactionalId", "id:1")
PREFIXED = AclResource("prefixed", "Topic", "orders-")


def test_paths() -> None:
    assert znodes_security.acl_path(LITERAL) == "/kafka-acl/TransactionalId/id:1"
    assert znodes_security.acl_path(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/orders-"
    assert znodes_security.token_path("x") == "/delegation_token/tokens/x"


def test_acls() -> None:
    acl = Acl("User:a", "Allow", "Read", "*")
    data = znodes_security.encode_acls([acl])
    assert json.loads(data) == {
        "version": 1,
        "acls": [
            {"principal": "User:a", "permissionType": "Allow", "operation": "Read", "host": "*"}
        ],
    }
    assert znodes_security.decode_acls("/p", data) == {acl}
    assert znodes_security.decode_acls("/p", b'{"version":1,"acls":[]}') == frozenset()
    other = data.replace(b"Read", b"Fly")
    assert znodes_security.decode_acls("/p", other) == {acl._replace(operation="Fly")}
    for malformed in (
        b"",
        b"{",
        b"[]",
        b'{"acls":[]}',
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":{}}',
        b'{"version":1,"acls":[{"principal":"x"}]}',
        data.replace(b"User:a", b"a"),
        data.replace(b"User:a", b"User:" + b"a" * 40_000),
        data.replace(b"Allow", b"Forbid"),
        data.replace(b'"*"', b"null"),
        data.replace(b'"host":"*"', b'"place":"*"'),
        data.replace(b'"Read"', b'""'),
    ):
        with pytest.raises(MalformedZnode, match="/p"):
            znodes_security.decode_acls("/p", malformed)


@pytest.mark.parametrize("resource", [LITERAL, PREFIXED])
def test_changes_name_their_resource(resource: AclResource) -> None:
    path = znodes_security.acl_change_prefix(resource.pattern_type) + "0000000001"
    data = znodes_security.encode_acl_change(resource)
    assert znodes_security.decode_acl_change(path, data) == resource


def test_changes_as_kafka_writes_them() -> None:
    assert znodes_security.encode_acl_change(LITERAL) == b"TRANSACTIONAL_ID:id:1"
    assert json.loads(znodes_security.encode_acl_change(PREFIXED)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "orders-",
        "patternType": "PREFIXED",
    }
    with pytest.raises(MalformedZnode):
        znodes_security.decode_acl_change("/kafka-acl-changes/acl_changes_1", b"nothing")


def test_delegation_token() -> None:
    token = TokenInformation("abc", "User:a b", "User:c", ("User:d",), 1, 2, 3)
    data = znodes_security.encode_token(token)
    assert json.loads(data) == {
        "version": 3,
        "owner": "User%3Aa%20b",
        "tokenRequester": "User%3Ac",
        "renewers": ["User%3Ad"],
        "issueTimestamp": 1,
        "expiryTimestamp": 2,
        "maxTimestamp": 3,
        "tokenId": "abc",
    }
    assert znodes_security.decode_token("/t", data) == token
    payload = json.loads(data)
    odd: list[tuple[str, object]] = [
        ("owner", "%FF"),
        ("renewers", ["%zz"]),
        ("issueTimestamp", -1),
    ]
    odd += [("maxTimestamp", 2**63), ("expiryTimestamp", 2**70)]
    for key, wrong in odd:
        with pytest.raises(MalformedZnode, match="/t"):
            znodes_security.decode_token("/t", json.dumps({**payload, key: wrong}).encode())
    payload["version"] = 2
    del payload["tokenRequester"]
    older = znodes_security.decode_token("/t", json.dumps(payload).encode())
    assert older.requester == older.owner == "User:a b"
    assert znodes_security.decode_token_change(znodes_security.encode_token_change("abc")) == "abc"
