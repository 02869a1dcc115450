"""Paths and payloads of ACLs and delegation tokens.

ACLs of literal patterns are under `/kafka-acl/TYPE/NAME`, those of prefixed patterns under
`/kafka-acl-extended/prefixed/TYPE/NAME`; a change notification for each tree has the resource to
read again. Types, operations and permissions have Kafka's names (`TransactionalId`,
`DescribeConfigs`, `Allow`).
"""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.controller.tree.znode_json import (
    MalformedZnode,
    decode_json,
    encode_json,
    integer,
    json_object,
    whole_number,
)
from ottla.controller.tree.znodes import desanitize, sanitize

LITERAL = "literal"
PREFIXED = "prefixed"

ACLS = "/kafka-acl"
EXTENDED_ACLS = "/kafka-acl-extended"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
ACL_CHANGES = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX = "/kafka-acl-changes/acl_changes_"
EXTENDED_ACL_CHANGE_PREFIX = "/kafka-acl-extended-changes/acl_changes_"

RESOURCE_TYPES = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User")

ACL_PATHS = (
    ACL_CHANGES,
    EXTENDED_ACL_CHANGES,
    *(f"{ACLS}/{resource_type}" for resource_type in RESOURCE_TYPES),
    *(f"{PREFIXED_ACLS}/{resource_type}" for resource_type in RESOURCE_TYPES),
)
"""Created by each broker with an authorizer when it starts, with all parents."""

DELEGATION_TOKENS = "/delegation_token/tokens"
TOKEN_CHANGES = "/delegation_token/token_changes"
TOKEN_CHANGE_PREFIX = "/delegation_token/token_changes/token_change_"
DELEGATION_TOKEN_PATHS = (DELEGATION_TOKENS, TOKEN_CHANGES)

_MAX_TIMESTAMP_MS = 2**63 - 1
_MAX_ACL_TEXT = 32_767 // 4
"""In characters of up to four bytes: no response could have longer ones."""

_WIRE_NAMES = {
    "TOPIC": "Topic",
    "GROUP": "Group",
    "CLUSTER": "Cluster",
    "TRANSACTIONAL_ID": "TransactionalId",
    "DELEGATION_TOKEN": "DelegationToken",
    "USER": "User",
}
_TYPE_NAMES = {name: constant for constant, name in _WIRE_NAMES.items()}


class Acl(NamedTuple):
    """An access control entry of a resource."""

    principal: str  # "User:alice", "User:*"
    permission_type: str  # "Allow", "Deny"
    operation: str  # "Read", "All", ...
    host: str  # "*" for any


class AclResource(NamedTuple):
    """A resource pattern with ACLs."""

    pattern_type: str  # LITERAL or PREFIXED
    resource_type: str  # one of RESOURCE_TYPES
    name: str


class TokenInformation(NamedTuple):
    """A delegation token without its secret; principals as "User:alice", times in milliseconds."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_lifetime_ends_ms: int


def acl_path(resource: AclResource) -> str:
    root = ACLS if resource.pattern_type == LITERAL else PREFIXED_ACLS
    return f"{root}/{resource.resource_type}/{resource.name}"


def encode_acls(acls: Iterable[Acl]) -> bytes:
    return encode_json(
        {
            "version": 1,
            "acls": [
                {
                    "principal": acl.principal,
                    "permissionType": acl.permission_type,
                    "operation": acl.operation,
                    "host": acl.host,
                }
                for acl in acls
            ],
        }
    )


def decode_acls(path: str, data: bytes) -> frozenset[Acl]:
    """Raises MalformedZnode; for an empty znode too, which neither Kafka nor Ottla writes.

    An operation that is not known stays as it is: other versions have more of them.
    """
    payload = decode_json(path, data)
    listed = payload.get("acls")
    if integer(path, payload, "version") != 1 or not isinstance(listed, list):
        raise MalformedZnode(f"{path} holds no ACLs of version 1: {data[:200]!r}")
    found: set[Acl] = set()
    for item in listed:
        entry = json_object(path, item)
        parts = [entry.get(name) for name in ("principal", "permissionType", "operation", "host")]
        acl = Acl(*(str(part) for part in parts))
        if not all(isinstance(part, str) and part for part in parts) or ":" not in acl.principal:
            raise MalformedZnode(f"{path} holds an ACL with a part that is missing: {entry}")
        if max(map(len, acl)) > _MAX_ACL_TEXT:
            raise MalformedZnode(f"{path} holds an ACL with a text that is too long")
        if acl.permission_type not in ("Allow", "Deny"):
            raise MalformedZnode(f"{path} holds an ACL that neither allows nor denies: {entry}")
        found.add(acl)
    return frozenset(found)


def acl_change_prefix(pattern_type: str) -> str:
    """The prefix of the sequential change notification."""
    return ACL_CHANGE_PREFIX if pattern_type == LITERAL else EXTENDED_ACL_CHANGE_PREFIX


def encode_acl_change(resource: AclResource) -> bytes:
    constant = _TYPE_NAMES[resource.resource_type]
    if resource.pattern_type == LITERAL:
        return f"{constant}:{resource.name}".encode()
    return encode_json(
        {
            "version": 1,
            "resourceType": constant,
            "name": resource.name,
            "patternType": resource.pattern_type.upper(),
        }
    )


def decode_acl_change(path: str, data: bytes) -> AclResource:
    if path.startswith(f"{ACL_CHANGES}/"):
        constant, separator, name = data.decode(errors="replace").partition(":")
        pattern_type = LITERAL
    else:
        payload = decode_json(path, data)
        constant, separator = str(payload.get("resourceType")), ":"
        name = str(payload.get("name"))
        pattern_type = str(payload.get("patternType")).lower()
    resource_type = _WIRE_NAMES.get(constant.upper())
    if not separator or resource_type is None or pattern_type not in (LITERAL, PREFIXED):
        raise MalformedZnode(f"{path} announces no resource: {data[:200]!r}")
    return AclResource(pattern_type, resource_type, name)


def token_path(token_id: str) -> str:
    return f"{DELEGATION_TOKENS}/{token_id}"


def encode_token(token: TokenInformation) -> bytes:
    return encode_json(
        {
            "version": 3,
            "owner": sanitize(token.owner),
            "tokenRequester": sanitize(token.requester),
            "renewers": [sanitize(renewer) for renewer in token.renewers],
            "issueTimestamp": token.issued_ms,
            "maxTimestamp": token.max_lifetime_ends_ms,
            "expiryTimestamp": token.expires_ms,
            "tokenId": token.token_id,
        }
    )


def decode_token(path: str, data: bytes) -> TokenInformation:
    payload = decode_json(path, data)
    version = integer(path, payload, "version")
    renewers = payload.get("renewers")
    if not 1 <= version <= 3 or not isinstance(renewers, list):
        raise MalformedZnode(f"{path} holds no delegation token: {data[:200]!r}")
    names = [payload.get("owner"), payload.get("tokenRequester" if version >= 3 else "owner")]
    try:
        owner, requester, *others = [desanitize(str(name)) for name in (*names, *renewers)]
    except MalformedZnode as error:
        raise MalformedZnode(f"{path}: {error}") from None
    return TokenInformation(
        token_id=str(payload.get("tokenId")),
        owner=owner,
        requester=requester,
        renewers=tuple(others),
        issued_ms=whole_number(path, payload, "issueTimestamp", 0, _MAX_TIMESTAMP_MS),
        expires_ms=whole_number(path, payload, "expiryTimestamp", -1, _MAX_TIMESTAMP_MS),
        max_lifetime_ends_ms=whole_number(path, payload, "maxTimestamp", 0, _MAX_TIMESTAMP_MS),
    )


def encode_token_change(token_id: str) -> bytes:
    return token_id.encode()


def decode_token_change(data: bytes) -> str:
    return data.decode(errors="replace")
