"""`ottla groups`: list, describe, events, delete, offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_groups, complete_topics
from ottla.cli.group_members import GroupView, Member, described, group_events
from ottla.cli.group_positions import Groups, Yes, all_committed, delete_groups
from ottla.cli.group_reset import reset_offsets
from ottla.cli.offsets import LATEST, offsets_at, parse_partitions, with_leader
from ottla.cli.output import Cell, Failure, print_fields, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.protocol.client.operations import CoordinatorOf, Node
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla groups list
  ottla groups describe billing
  ottla groups describe billing --members
  ottla groups events billing                        its history, with reasons
  ottla groups reset-offsets billing orders --to-earliest   dry run
  ottla groups reset-offsets billing orders --to-earliest --execute
  ottla groups delete-offsets billing orders
  ottla groups delete billing
"""

app = family("List, describe, reset and delete consumer groups.", EXAMPLES)
app.command("reset-offsets")(reset_offsets)
app.command("events")(group_events)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)
]


_TYPES = ("classic", "consumer", "share", "streams")
# Those of Kafka up to 4: `GroupState`.
_STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)


def _chosen(option: str, names: list[str] | None, known: tuple[str, ...]) -> list[str]:
    """The names as brokers write them. Raises Failure for an unknown one, which matches nothing."""
    by_name = {name.lower(): name for name in known}
    for name in names or ():
        if name.lower() not in by_name:
            raise usage(f"{option} {name} is not one of {', '.join(known)}.")
    return [by_name[name.lower()] for name in names or ()]


@app.command("list")
@connected
def list_groups(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Stable, Empty, PreparingRebalance, ...; repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="classic, consumer, ...; repeatable.")
    ] = None,
) -> None:
    """List all groups with their states."""
    types = _chosen("--type", kind, _TYPES)
    states = _chosen("--state", state, _STATES)
    rows: list[dict[str, Cell]] = []
    for broker_id in session.broker_ids():
        request = ListGroupsRequest(states_filter=states)
        response = session.call(ListGroupsResponse, request, Node(broker_id))
        check(response.error_code, f"broker {broker_id}")
        rows.extend(
            {
                "group": row.group_id,
                "state": row.group_state,
                "protocol": row.protocol_type,
                "type": row.group_type or "classic",
                "coordinator": broker_id,
            }
            for row in response.groups
            if not types or (row.group_type or "classic").lower() in types
        )
    rows.sort(key=lambda row: str(row["group"]))
    if session.json:
        print_json(rows)
        return
    print_rows(rows, ["group", "state", "protocol", "type", "coordinator"], empty="No groups.")


@app.command()
@connected
def describe(
    session: Session,
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="GROUP...", show_default=False, autocompletion=complete_groups),
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show members and their partitions.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Only this topic; repeatable.", autocompletion=complete_topics
        ),
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all", help="All consumer groups.")] = False,
    state: Annotated[
        bool,
        typer.Option("--state", help="A row a group: coordinator, assignor, state, members."),
    ] = False,
) -> None:
    """Show state, members, and the lag of each partition."""
    if state and (members or topic):
        raise usage("--state is one row a group, without --members and --topic.")
    if bool(groups) == all_groups:
        raise usage("name groups, or all of them with --all; see `ottla groups list`.")
    names = groups or [
        row.group_id
        for broker_id in session.broker_ids()
        for row in session.call(ListGroupsResponse, ListGroupsRequest(), Node(broker_id)).groups
        if row.protocol_type in ("consumer", "")  # without members, it has none
    ]
    if state:
        states = [_state(session, group) for group in dict.fromkeys(names)]
        if session.json:
            print_json(states)
        else:
            columns = ["group", "coordinator", "protocol", "state", "members"]
            print_rows(states, columns, empty="No groups.")
        return
    documents = []
    for number, group in enumerate(dict.fromkeys(names)):
        if number and not session.json:
            say("")
        documents.append(_describe(session, group, members, topic or []))
    if session.json:
        print_json(documents[0] if groups and len(groups) == 1 else documents)
    elif not documents:
        say("No groups.")


def _describe(
    session: Session, group: str, shows_members: bool, topics: list[str]
) -> dict[str, object]:
    """The description of a group, which is also printed unless --json was given."""
    found = described(session, group)
    offsets = all_committed(session, group)
    _check_existence(group, found, offsets)
    rows = _lag_rows(session, found.members, offsets, topics)
    lags = [row["lag"] for row in rows if isinstance(row["lag"], int)]
    fields = _state_row(session, group, found) | {"lag": sum(lags)}
    if not session.json:
        print_fields(fields)
        say("")
    if shows_members and not session.json:
        shown = [member.as_row() for member in found.members]
        columns = ["member", "instance", "client", "host", "partitions"]
        print_rows(shown, columns, empty="The group has no members.")
    elif not session.json:
        columns = ["topic", "partition", "committed", "end", "lag", "client", "host"]
        print_rows(rows, columns, empty="Nothing committed, nothing assigned.")
    return {**fields, "members": [m.as_json() for m in found.members], "partitions": rows}


def _state(session: Session, group: str) -> dict[str, Cell]:
    """The row of a group. Only a group that has no state is asked for its offsets."""
    found = described(session, group)
    if found.state == "Dead":
        _check_existence(group, found, all_committed(session, group))
    return _state_row(session, group, found)


def _check_existence(group: str, found: GroupView, offsets: Collection[TopicPartition]) -> None:
    if found.state == "Dead" and not offsets:
        raise Failure(f"group {group} does not exist; see `ottla groups list`.")


def _state_row(session: Session, group: str, found: GroupView) -> dict[str, Cell]:
    return {
        "group": group,
        "state": found.state,
        "protocol": found.protocol or None,
        "coordinator": session.client.state.coordinator(group, 0),
        "members": len(found.members),
    }


def _lag_rows(
    session: Session,
    members: Iterable[Member],
    offsets: dict[TopicPartition, tuple[int, str]],
    topics: list[str],
) -> list[dict[str, Cell]]:
    owners = {item: member for member in members for item in member.partitions}
    partitions = sorted(item for item in {*offsets, *owners} if not topics or item.topic in topics)
    ends: dict[TopicPartition, int | None] = {}
    led = with_leader(session, (item.topic for item in partitions))
    for item in partitions:
        if item not in led:  # or its topic is deleted, and its offsets are not
            ends[item] = None
            continue
        try:
            ends |= offsets_at(session, [item], LATEST)
        except KafkaError as error:  # it is deleted meanwhile
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            ends[item] = None
    rows: list[dict[str, Cell]] = []
    for item in partitions:
        committed = offsets[item][0] if item in offsets else None
        end = ends[item]
        owner = owners.get(item)
        rows.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "committed": committed,
                "end": end,
                "lag": None if committed is None or end is None else max(0, end - committed),
                "member": owner.member_id if owner else None,
                "client": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows


@app.command()
@connected
def delete(session: Session, groups: Groups, yes: Yes = False) -> None:
    """Delete groups that have no members, with their offsets."""
    delete_groups(session, groups, yes, noun="Group", contents="all offsets")


@app.command("delete-offsets")
@connected
def delete_offsets(
    session: Session,
    group: GroupArgument,
    names: Annotated[
        list[str],
        typer.Argument(help="topic, topic:0 or topic:0,2", autocompletion=complete_topics),
    ],
) -> None:
    """Delete the offsets of topics to which the group is not subscribed."""
    partitions = parse_partitions(session, names, must_exist=False)
    if not partitions:
        raise usage("name at least one topic.")
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=item.partition)
                    for item in partitions
                    if item.topic == topic
                ],
            )
            for topic in dict.fromkeys(item.topic for item in partitions)
        ],
    )
    response = session.call(OffsetDeleteResponse, request, CoordinatorOf(group))
    check(response.error_code, f"group {group}")
    problems = {
        TopicPartition(row.name, item.partition_index): item.error_code
        for row in response.topics
        for item in row.partitions
        if item.error_code != ErrorCode.NONE
    }
    deleted = [str(item) for item in partitions if item not in problems]
    if session.json:
        print_json({"group": group, "deleted": deleted})
    elif deleted:
        say(f"Offsets of {group} deleted for {', '.join(deleted)}.")
    for item, code in problems.items():
        check(code, f"group {group}, {item}")
