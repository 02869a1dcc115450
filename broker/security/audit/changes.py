"""Writes what administrators change to the security log: ACLs, settings, users, tokens, quotas.

The handlers know nothing of it. An entry of the handler table that changes something gets a wrapper
which describes the request before its handler runs and compares that with the rows of the response.
No line has a secret: settings and credentials are named without their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import amend
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import HandlerEntry, HandlerResult, RequestContext
    from ottla.broker.security.audit.security_log import SecurityLog

# Rows of one request that get a line each; it takes 20 us to write one. The rest is one line.
MAX_ROWS = 500

# The authorizer has written why.
_DENIED = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

# What was changed, and the error code.
Row = tuple[str, int]
Rows = Callable[[Any], Iterable[Row]]
# Of a request; called before its handler, which may change the request.
Describe = Callable[[Any], Rows]


def audited(
    table: Sequence[HandlerEntry],
    log: SecurityLog,
    token_id_of: Callable[[bytes], str | None],
) -> list[HandlerEntry]:
    """The handler table with what changes something wrapped. `token_id_of` finds a delegation
    token by its secret."""
    describers: dict[int, tuple[str, Describe]] = {
        ApiKey.CREATE_ACLS: ("acl", _create_acls),
        ApiKey.DELETE_ACLS: ("acl", _delete_acls),
        ApiKey.ALTER_CONFIGS: ("configuration", _alter_configs),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ("configuration", _alter_configs),
        ApiKey.ALTER_CLIENT_QUOTAS: ("quota", _alter_quotas),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ("user", _alter_users),
        ApiKey.CREATE_DELEGATION_TOKEN: ("token", _create_token),
        ApiKey.RENEW_DELEGATION_TOKEN: ("token", _token("Renewed", token_id_of)),
        ApiKey.EXPIRE_DELEGATION_TOKEN: ("token", _token("Expired", token_id_of)),
    }
    return [
        _wrapped(entry, log, *describers[entry.api_key]) if entry.api_key in describers else entry
        for entry in table
    ]


def _wrapped(entry: HandlerEntry, log: SecurityLog, kind: str, describe: Describe) -> HandlerEntry:
    handler = entry.handler

    def audited_handler(context: RequestContext, request: Any) -> HandlerResult:
        if not getattr(request, "validate_only", False):
            rows_of = describe(request)
            amend(context, lambda response: _write(log, context, kind, rows_of(response)))
        return handler(context, request)

    return entry._replace(handler=audited_handler)


def _write(log: SecurityLog, context: RequestContext, kind: str, rows: Iterable[Row]) -> None:
    remaining = iter(rows)
    for what, code in islice(remaining, MAX_ROWS):
        if code == ErrorCode.NONE:
            log.changed(context, kind, what)
        elif code not in _DENIED:
            log.changed(context, kind, what, error_name(code))
    more = sum(1 for _ in remaining)
    if more:
        log.changed(context, kind, f"{more} more changes of the same request")


def _create_acls(request: Any) -> Rows:
    creations = list(request.creations)

    def rows(response: Any) -> Iterable[Row]:
        for creation, result in zip(creations, response.results, strict=False):
            yield f"Added ACL {_acl(creation, creation.resource_pattern_type)}", result.error_code

    return rows


def _delete_acls(request: Any) -> Rows:
    def rows(response: Any) -> Iterable[Row]:
        for result in response.filter_results:
            if result.error_code:
                yield "Removed ACLs", result.error_code
            for acl in result.matching_acls:
                yield f"Removed ACL {_acl(acl, acl.pattern_type)}", acl.error_code

    return rows


def _acl(acl: Any, pattern_type: int) -> str:
    # Only now: the words of access control are not imported by a broker without it.
    from ottla.broker.security.authorization.acl_types import (
        Operation,
        PatternType,
        Permission,
        ResourceType,
    )

    def word(kind: Any, number: int) -> str:
        return str(kind(number).name) if number in set(kind) else str(number)

    return (
        f"{word(Permission, acl.permission_type)} {acl.principal} "
        f"{word(Operation, acl.operation)} from {acl.host} on "
        f"{word(ResourceType, acl.resource_type)}:{word(PatternType, pattern_type)}:"
        f"{acl.resource_name}"
    )


_RESOURCES = {2: "topic", 4: "broker", 8: "loggers of broker", 16: "client metrics", 32: "group"}


def _alter_configs(request: Any) -> Rows:
    changed = {
        (each.resource_type, each.resource_name): ", ".join(
            config.name for config in islice(each.configs, MAX_ROWS)
        )
        for each in request.resources
    }

    def rows(response: Any) -> Iterable[Row]:
        for row in response.responses:
            kind = _RESOURCES.get(row.resource_type, f"resource type {row.resource_type}")
            names = changed.get((row.resource_type, row.resource_name), "")
            where = f"{kind} {row.resource_name or '(default)'}"
            yield f"Changed configuration of {where}: {names or 'no settings'}", row.error_code

    return rows


def _alter_quotas(request: Any) -> Rows:
    names = [", ".join(each.key for each in entry.ops) for entry in request.entries]

    def rows(response: Any) -> Iterable[Row]:
        for row, keys in zip(response.entries, names, strict=False):
            entity = ", ".join(
                f"{part.entity_type} {part.entity_name or '(default)'}" for part in row.entity
            )
            yield f"Changed quotas of {entity}: {keys}", row.error_code

    return rows


def _alter_users(request: Any) -> Rows:
    changes: dict[str, list[str]] = {}
    for word, listed in (("set", request.upsertions), ("removed", request.deletions)):
        for change in listed:
            changes.setdefault(change.name, []).append(f"{word} {_mechanism(change.mechanism)}")

    def rows(response: Any) -> Iterable[Row]:
        for row in response.results:
            what = ", ".join(changes.get(row.user, ()))
            yield f"Changed credentials of user {row.user}: {what}", row.error_code

    return rows


def _mechanism(number: int) -> str:
    return {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}.get(number, f"mechanism {number}")


def _create_token(request: Any) -> Rows:
    def rows(response: Any) -> Iterable[Row]:
        owner = f"{response.principal_type}:{response.principal_name}"
        yield f"Created delegation token {response.token_id or '-'} of {owner}", response.error_code

    return rows


def _token(verb: str, token_id_of: Callable[[bytes], str | None]) -> Describe:
    def describe(request: Any) -> Rows:
        # Before the handler: an expired token is unknown afterwards.
        token_id = token_id_of(bytes(request.hmac)) or "(unknown)"

        def rows(response: Any) -> Iterable[Row]:
            yield f"{verb} delegation token {token_id}", response.error_code

        return rows

    return describe
