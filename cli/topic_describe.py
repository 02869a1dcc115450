"""`ottla topics describe`: partitions and settings of topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer

from ottla.broker.cluster.cluster_problems import is_under_replicated
from ottla.cli.cluster_checks import replicas_being_added
from ottla.cli.completion import complete_topics
from ottla.cli.output import Cell, Failure, note, print_fields, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.cli.topic_regex import RegexOption, matching_topics
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from ottla.protocol.uuids import uuid_to_string

_TOPIC_RESOURCE = 2
_SET_ON_TOPIC = 1  # the source of a setting of the topic itself
_MIN_ISR = "min.insync.replicas"

# By min.insync.replicas, and the replicas that a reassignment adds.
Keep = Callable[[MetadataResponsePartition, int, Collection[int]], bool]
IfExistsOption = Annotated[
    bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")
]


@connected
def describe(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Topic names; none: all.", show_default=False, autocompletion=complete_topics
        ),
    ] = None,
    topic_id: Annotated[
        list[str] | None, typer.Option("--topic-id", help="The topic with this id; repeatable.")
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Without names: also internal topics.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only under-replicated partitions.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option("--under-min-isr", help=f"Only with fewer in-sync replicas than {_MIN_ISR}."),
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr", help=f"Only with as many as {_MIN_ISR}.")
    ] = False,
    with_overrides: Annotated[
        bool, typer.Option("--with-overrides", help="Only topics with settings of their own.")
    ] = False,
    if_exists: IfExistsOption = False,
    regex: RegexOption = "",
) -> None:
    """Describe topics: settings; leader, replicas and in-sync replicas of partitions."""
    keep: list[Keep] = []
    if under_replicated:
        keep.append(
            lambda row, _, added: is_under_replicated(row.replica_nodes, row.isr_nodes, added)
        )
    if unavailable:
        keep.append(lambda row, _, __: row.leader_id < 0)
    if under_min_isr:
        keep.append(lambda row, least, _: len(row.isr_nodes) < least)
    if at_min_isr:
        keep.append(lambda row, least, _: len(row.isr_nodes) == least)
    if regex and (names or topic_id):
        raise usage("name topics, or choose them by --regex.")
    if regex:
        found = matching_topics(session, regex, internal=internal, if_exists=if_exists)
    else:
        found = _found(session, names or [], topic_id or [], internal, if_exists)
    adding = replicas_being_added(session, found)
    settings = _settings(session, [row.name or "" for row in found])
    shown = []
    for row in found:
        own, least = settings[row.name or ""]
        partitions = [
            (item, added)
            for item in sorted(row.partitions, key=lambda each: each.partition_index)
            for added in (adding.get((row.name or "", item.partition_index), ()),)
            if all(each(item, least, added) for each in keep)
        ]
        if (partitions or not keep or names or topic_id) and (own or not with_overrides):
            shown.append((row, own, [_partition_row(*each) for each in partitions]))
    if session.json:
        print_json([_value(*each) for each in shown])
        return
    for number, (row, own, rows) in enumerate(shown):
        if number:
            say("")
        _print(row, own, rows)
    if not shown:
        say(
            "No such partitions." if keep else "No such topics." if with_overrides else "No topics."
        )


def _found(
    session: Session, names: list[str], ids: list[str], internal: bool, if_exists: bool
) -> list[MetadataResponseTopic]:
    """The topics that are named, or all of them, sorted. Raises Failure for a missing one."""
    if names and ids:
        raise usage("name topics, or their ids by --topic-id.")
    if names:
        rows = session.client.metadata(names).topics
        for row in rows:
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
                note(f"Topic {row.name} does not exist.")
            else:
                check(row.error_code, f"topic {row.name}")
        return [row for row in rows if row.error_code == ErrorCode.NONE]
    rows = sorted(session.client.metadata(None).topics, key=lambda row: row.name or "")
    if not ids:
        return [row for row in rows if internal or not row.is_internal]
    chosen = [row for row in rows if uuid_to_string(row.topic_id) in ids]
    missing = set(ids).difference(uuid_to_string(row.topic_id) for row in chosen)
    if missing and not if_exists:
        raise Failure(f"no topic has the id {min(missing)}; see `ottla topics list --json`.")
    return chosen


Settings = dict[str, Cell] | None


def _settings(session: Session, names: Sequence[str]) -> dict[str, tuple[Settings, int]]:
    """The settings of the topics themselves, and min.insync.replicas.

    None and 0 for a topic whose settings the user may not see.
    """
    if not names:
        return {}
    resources = [DescribeConfigsResource(_TOPIC_RESOURCE, name, None) for name in names]
    response = session.call(DescribeConfigsResponse, DescribeConfigsRequest(resources))
    found: dict[str, tuple[Settings, int]] = dict.fromkeys(names, (None, 0))
    for result in response.results:
        if result.error_code != ErrorCode.NONE:
            continue
        rows = {row.name: row for row in result.configs}
        own: dict[str, Cell] = {
            name: "(secret)" if row.is_sensitive else row.value
            for name, row in sorted(rows.items())
            if row.config_source == _SET_ON_TOPIC
        }
        least = rows[_MIN_ISR].value if _MIN_ISR in rows else None
        found[result.resource_name] = (own, int(least or 0))
    return found


def _print(row: MetadataResponseTopic, own: Settings, rows: list[dict[str, Cell]]) -> None:
    settings: Cell = "not visible to this user"
    if own is not None:
        settings = [f"{name}={value}" for name, value in own.items()] or "broker defaults apply"
    fields: dict[str, Cell] = {
        "topic": row.name,
        "id": uuid_to_string(row.topic_id),
        "partitions": len(row.partitions),
        "internal": row.is_internal,
        "settings": settings,
    }
    print_fields(fields)
    columns = ["partition", "leader", "epoch", "replicas", "in_sync", "state"]
    print_rows(rows, columns, empty="No such partitions.")


def _value(
    row: MetadataResponseTopic, own: Settings, rows: list[dict[str, Cell]]
) -> dict[str, object]:
    return {
        "name": row.name,
        "id": uuid_to_string(row.topic_id),
        "internal": row.is_internal,
        "settings": own,
        "partitions": rows,
    }


def _partition_row(item: MetadataResponsePartition, added: Collection[int]) -> dict[str, Cell]:
    if item.leader_id < 0:
        state = "no leader"
    elif is_under_replicated(item.replica_nodes, item.isr_nodes, added):
        state = "under-replicated"
    elif is_under_replicated(item.replica_nodes, item.isr_nodes):
        state = "adding replicas"
    else:
        state = "in sync"
    return {
        "partition": item.partition_index,
        "leader": item.leader_id if item.leader_id >= 0 else None,
        "epoch": item.leader_epoch,
        "replicas": item.replica_nodes,
        "in_sync": item.isr_nodes,
        "offline": item.offline_replicas,
        "state": state,
    }
