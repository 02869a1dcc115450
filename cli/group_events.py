"""`ottla groups events`: the history of a group, with reasons."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ottla.cli.output import Cell, Failure, print_json, print_rows, time_text
from ottla.cli.session import Session, check, connected
from ottla.protocol.client.operations import CoordinatorOf
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

_GROUP = 32  # the type of resource
_KEY = "ottla.group.events"
_COLUMNS = ["time", "event", "generation", "member", "client", "host", "why"]


@connected
def group_events(
    session: Session,
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
) -> None:
    """Print the history of a group: joins, leaves, rebalances, fenced and removed members."""
    request = DescribeConfigsRequest([DescribeConfigsResource(_GROUP, group, [_KEY])])
    (found,) = session.call(DescribeConfigsResponse, request, CoordinatorOf(group)).results
    if found.error_code == ErrorCode.INVALID_REQUEST:
        raise Failure("the group's coordinator keeps no history: it is not an Ottla broker.")
    check(found.error_code, f"group {group}", found.error_message)
    events = json.loads(found.configs[0].value or "[]")
    if session.json:
        print_json(events)
        return
    rows: list[dict[str, Cell]] = [
        {
            "time": time_text(event["timestamp_ms"]),
            "event": event["kind"],
            "generation": event["generation"],
            "member": event["member_id"],
            "client": event["client_id"],
            "host": event["client_host"],
            "why": event["reason"],
        }
        for event in events
    ]
    print_rows(rows, _COLUMNS, empty=f"The coordinator has no events of group {group}.")
