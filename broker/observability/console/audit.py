"""The changes of the console that no broker writes to its security log: topics, records, offsets.

What `ottla.broker.security.audit.changes` writes of all clients (ACLs, settings, users) it writes
of the console, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.amendments import amend
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import HandlerEntry, HandlerResult, RequestContext
    from ottla.broker.security.audit.security_log import SecurityLog

# What was changed, and the error code. Of a request and its response.
Row = tuple[str, int]
Describe = Callable[[Any, Any], Iterable[Row]]


def record_changes(table: Sequence[HandlerEntry], log: SecurityLog) -> list[HandlerEntry]:
    """The handlers with a line in the security log for each change."""
    return [_recorded(entry, log) for entry in table]


def _recorded(entry: HandlerEntry, log: SecurityLog) -> HandlerEntry:
    described = _CHANGES.get(entry.api_key)
    if described is None:
        return entry
    kind, describe = described
    handler = entry.handler

    def recorded(context: RequestContext, request: Any) -> HandlerResult:
        if not getattr(request, "validate_only", False):
            amend(context, lambda response: _write(log, context, kind, describe(request, response)))
        return handler(context, request)

    return entry._replace(handler=recorded)


def _write(log: SecurityLog, context: RequestContext, kind: str, rows: Iterable[Row]) -> None:
    for what, code in rows:
        error = None if code == ErrorCode.NONE else error_name(code)
        log.changed(context, kind, f"{what} (console)", error)


def _created(request: Any, response: Any) -> Iterable[Row]:
    for row in response.topics:
        yield f"Created topic {row.name}", row.error_code


def _deleted(request: Any, response: Any) -> Iterable[Row]:
    for row in response.responses:
        yield f"Deleted topic {row.name}", row.error_code


def _partitions(request: Any, response: Any) -> Iterable[Row]:
    counts = {topic.name: topic.count for topic in request.topics}
    for row in response.results:
        count = counts.get(row.name, "more")
        yield f"Changed topic {row.name} to {count} partitions", row.error_code


def _produced(request: Any, response: Any) -> Iterable[Row]:
    for topic in response.responses:
        for row in topic.partition_responses:
            where = f"{topic.name}-{row.index}"
            yield f"Produced a record to {where} at offset {row.base_offset}", row.error_code


def _committed(request: Any, response: Any) -> Iterable[Row]:
    for topic in response.topics:
        code = next((row.error_code for row in topic.partitions if row.error_code), ErrorCode.NONE)
        count = len(topic.partitions)
        yield f"Reset {count} offsets of group {request.group_id} in topic {topic.name}", code


def _deleted_groups(request: Any, response: Any) -> Iterable[Row]:
    for row in response.results:
        yield f"Deleted group {row.group_id}", row.error_code


_CHANGES: dict[int, tuple[str, Describe]] = {
    ApiKey.CREATE_TOPICS: ("topic", _created),
    ApiKey.DELETE_TOPICS: ("topic", _deleted),
    ApiKey.CREATE_PARTITIONS: ("topic", _partitions),
    ApiKey.PRODUCE: ("records", _produced),
    ApiKey.OFFSET_COMMIT: ("group", _committed),
    ApiKey.DELETE_GROUPS: ("group", _deleted_groups),
}
