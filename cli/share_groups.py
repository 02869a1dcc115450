"""`ottla share-groups`: list, describe, offsets, reset, delete (KIP-932).

The requests are those of Kafka's `kafka-share-groups`, so the commands work with a Kafka 4.2
cluster, too.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_groups, complete_topics
from ottla.cli.group_positions import Groups, Yes, delete_groups
from ottla.cli.output import Cell, print_fields, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.cli.share_group_requests import StartOffset, described, start_offsets
from ottla.cli.share_reset import reset
from ottla.protocol.client.operations import CoordinatorOf, Node, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.share_group_describe import (
    Member,
)

EXAMPLES = """\
  ottla share-groups list
  ottla share-groups describe workers
  ottla share-groups describe workers --members
  ottla share-groups offsets workers
  ottla share-groups reset workers orders --to-earliest             dry run
  ottla share-groups reset workers orders --to-earliest --execute
  ottla share-groups delete-offsets workers orders
  ottla share-groups delete workers
"""

# The first version of ListGroups that can ask for groups of one type (KIP-848).
_WITH_TYPES = Versions(5)
_TYPE = "share"

app = family("List, describe, reset and delete share groups (KIP-932).", EXAMPLES)
app.command("reset")(reset)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)
]


@app.command("list")
@connected
def list_groups(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Stable, Empty or Dead; repeatable.")
    ] = None,
) -> None:
    """List the share groups with their states."""
    rows: list[dict[str, Cell]] = []
    for broker_id in session.broker_ids():
        request = ListGroupsRequest(states_filter=state or [], types_filter=[_TYPE])
        response = session.call(ListGroupsResponse, request, Node(broker_id), versions=_WITH_TYPES)
        check(response.error_code, f"broker {broker_id}")
        rows.extend(
            {"group": row.group_id, "state": row.group_state, "coordinator": broker_id}
            for row in response.groups
            if row.group_type == _TYPE
        )
    rows.sort(key=lambda row: str(row["group"]))
    if session.json:
        print_json(rows)
        return
    print_rows(rows, ["group", "state", "coordinator"], empty="No share groups.")


@app.command()
@connected
def describe(
    session: Session,
    group: GroupArgument,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show members and their partitions.")
    ] = False,
) -> None:
    """Show state, epochs, members and start offsets."""
    found = described(session, group)
    offsets = start_offsets(session, group)
    fields: dict[str, Cell] = {
        "group": group,
        "state": found.group_state,
        "coordinator": session.client.state.coordinator(group, 0),
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor": found.assignor_name or None,
        "members": len(found.members),
    }
    member_rows = [_member_row(member) for member in found.members]
    if session.json:
        partitions = [row.as_row() for row in offsets]
        print_json({**fields, "members": member_rows, "partitions": partitions})
        return
    print_fields(fields)
    say("")
    if members:
        columns = ["member", "epoch", "client", "host", "topics", "partitions"]
        print_rows(member_rows, columns, empty="The group has no members.")
        return
    _print_offsets(offsets)


@app.command()
@connected
def offsets(
    session: Session,
    group: GroupArgument,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic; repeatable.")
    ] = None,
) -> None:
    """Show the start offset of each share partition: all records below it are delivered for good.

    A start offset of "-" has not been determined yet: no member has read from the partition. The
    lag is "-" where the broker does not report it.
    """
    described(session, group)  # an error that names the group, not an empty table
    rows = [row for row in start_offsets(session, group) if not topic or row.topic in topic]
    if session.json:
        print_json({"group": group, "partitions": [row.as_row() for row in rows]})
        return
    _print_offsets(rows)


def _print_offsets(offsets: list[StartOffset]) -> None:
    columns = ["topic", "partition", "start_offset", "end", "lag", "leader_epoch"]
    rows = [row.as_row() for row in offsets]
    print_rows(rows, columns, empty="The group has no share partitions.")


def _member_row(member: Member) -> dict[str, Cell]:
    return {
        "member": member.member_id,
        "epoch": member.member_epoch,
        "client": member.client_id,
        "host": member.client_host.removeprefix("/"),
        "topics": sorted(member.subscribed_topic_names),
        "partitions": sorted(
            f"{topic.topic_name}-{index}"
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ),
    }


@app.command()
@connected
def delete(session: Session, groups: Groups, yes: Yes = False) -> None:
    """Delete share groups that have no members, with the state of their records."""
    delete_groups(
        session,
        groups,
        yes,
        noun="Share group",
        contents="the state of all records",
        # DeleteGroups would delete a consumer group of this name.
        check_group=lambda group: described(session, group),
    )


@app.command("delete-offsets")
@connected
def delete_offsets(
    session: Session,
    group: GroupArgument,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", show_default=False, autocompletion=complete_topics),
    ],
) -> None:
    """Delete the state of whole topics. The group must have no members."""
    if any(":" in topic for topic in topics):
        raise usage("name whole topics: the state of one partition cannot be deleted.")
    request = DeleteShareGroupOffsetsRequest(
        group, [DeleteShareGroupOffsetsRequestTopic(topic) for topic in dict.fromkeys(topics)]
    )
    response = session.call(DeleteShareGroupOffsetsResponse, request, CoordinatorOf(group))
    check(response.error_code, f"group {group}", response.error_message)
    deleted = [row.topic_name for row in response.responses if row.error_code == ErrorCode.NONE]
    if session.json:
        print_json({"group": group, "deleted": deleted})
    elif deleted:
        say(f"State of {group} deleted for {', '.join(deleted)}.")
    for row in response.responses:
        check(row.error_code, f"group {group}, topic {row.topic_name}", row.error_message)
