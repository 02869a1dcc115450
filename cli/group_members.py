"""Members of a group, the partitions they were assigned, and the events of the group."""

from __future__ import annotations

import json
from typing import Annotated, NamedTuple

import typer

from ottla.cli.completion import complete_groups
from ottla.cli.output import Cell, Failure, print_json, print_rows, time_text
from ottla.cli.session import Session, check, connected
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import CoordinatorOf
from ottla.protocol.consumer_protocol import assigned_partitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.topics import TopicPartition


class Member(NamedTuple):
    """One consumer of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]

    def as_row(self) -> dict[str, Cell]:
        """For a table."""
        return {
            "member": self.member_id,
            "instance": self.instance_id,
            "client": self.client_id,
            "host": self.host,
            "partitions": [str(item) for item in self.partitions],
        }

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "partitions": [item._asdict() for item in self.partitions],
        }


class GroupView(NamedTuple):
    """A group of either protocol; `protocol` is the name of its assignor."""

    state: str
    protocol: str
    members: list[Member]


def described(session: Session, group: str) -> GroupView:
    """The coordinator's description of a group; its state is "Dead" if it does not exist."""
    request = DescribeGroupsRequest(groups=[group])
    found = session.call(DescribeGroupsResponse, request, CoordinatorOf(group)).groups[0]
    if found.group_state == "Dead" or found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        newer = _consumer_group(session, group)
        return GroupView("Dead", "", []) if newer is None else newer
    check(found.error_code, f"group {group}")
    return GroupView(found.group_state, found.protocol_data, _members_of(found))


def _consumer_group(session: Session, group: str) -> GroupView | None:
    """The description of a group of the new protocol (KIP-848), None if it is not one."""
    request = ConsumerGroupDescribeRequest([group])
    try:
        response = session.call(ConsumerGroupDescribeResponse, request, CoordinatorOf(group))
    except UnsupportedApiError:
        return None  # the broker does not support such groups
    found = response.groups[0]
    if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(found.error_code, f"group {group}")
    members = [
        Member(
            row.member_id,
            row.instance_id,
            row.client_id,
            row.client_host.removeprefix("/"),
            sorted(
                TopicPartition(topic.topic_name, number)
                for topic in row.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for row in found.members
    ]
    return GroupView(found.group_state, found.assignor_name, members)


def _members_of(group: DescribedGroup) -> list[Member]:
    """The members; without partitions if the assignment is not that of a consumer."""
    return [
        Member(
            row.member_id,
            row.group_instance_id,
            row.client_id,
            row.client_host.removeprefix("/"),
            assigned_partitions(bytes(row.member_assignment)),
        )
        for row in group.members
    ]


_GROUP = 32  # the type of resource
_KEY = "ottla.group.events"
_COLUMNS = ["time", "event", "generation", "member", "client", "host", "why"]


@connected
def group_events(
    session: Session,
    group: Annotated[
        str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)
    ],
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
