"""`ottla share-groups reset`: sets start offsets as `kafka-share-groups`; a dry run by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ottla.cli.offsets import (
    EARLIEST,
    LATEST,
    now_ms,
    offsets_at,
    offsets_since,
    parse_duration,
    parse_partitions,
    parse_time,
    within_log,
)
from ottla.cli.output import Cell, Failure, note, print_json, print_rows, usage
from ottla.cli.session import Session, connected
from ottla.cli.share_group_requests import alter, described, start_offsets
from ottla.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, int]


@connected
def reset(
    session: Session,
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC...]", help="topic, topic:0 or topic:0,2", show_default=False
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All share partitions of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Log start offsets.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Log end offsets.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", help="One offset for all.")
    ] = None,
    to_datetime: Annotated[
        str, typer.Option("--to-datetime", help="First record at or after 2026-03-01T10:00.")
    ] = "",
    by_duration: Annotated[
        str, typer.Option("--by-duration", help="As --to-datetime, this long ago: 2h, 7d, PT1H30M.")
    ] = "",
    execute: Annotated[
        bool, typer.Option("--execute", help="Set the offsets; without it a dry run.")
    ] = False,
) -> None:
    """Set the start offsets of a share group. The group must have no members.

    The state of all records of the partitions is lost: records from the start offset on are
    delivered again, with a delivery count of 1.

    \b
    Examples:
      ottla share-groups reset workers orders --to-earliest
      ottla share-groups reset workers orders:0 --to-offset 1000 --execute
      ottla share-groups reset workers --all-topics --to-datetime 2026-03-01T10:00 --execute
    """
    ways: list[tuple[bool, Callable[[list[TopicPartition]], Offsets]]] = [
        (to_earliest, lambda partitions: offsets_at(session, partitions, EARLIEST)),
        (to_latest, lambda partitions: offsets_at(session, partitions, LATEST)),
        (to_offset is not None, lambda partitions: dict.fromkeys(partitions, to_offset or 0)),
        (bool(to_datetime), lambda p: offsets_since(session, p, parse_time(to_datetime))),
        (
            bool(by_duration),
            lambda p: offsets_since(session, p, now_ms() - parse_duration(by_duration)),
        ),
    ]
    chosen = [way for is_chosen, way in ways if is_chosen]
    if len(chosen) != 1:
        raise usage("choose one of --to-earliest, --to-latest, --to-offset, ...; see --help.")
    if bool(names) == all_topics:
        raise usage("name the topics, or --all-topics for all share partitions of the group.")
    found = described(session, group)
    if execute and found.members:
        raise Failure(
            f"share group {group} has {len(found.members)} members: stop them first; "
            f"`ottla share-groups describe {group} --members` shows them."
        )
    before = {
        TopicPartition(row.topic, row.partition): row.offset
        for row in start_offsets(session, group)
    }
    partitions = parse_partitions(session, names) if names else sorted(before)
    if not partitions:
        raise Failure(f"share group {group} has no share partitions; name the topics.")
    after = within_log(session, chosen[0](partitions))
    if execute:
        alter(session, group, after)
    rows: list[dict[str, Cell]] = [
        {
            "topic": item.topic,
            "partition": item.partition,
            "before": before.get(item),
            "after": after[item],
        }
        for item in sorted(after)
    ]
    if session.json:
        print_json({"group": group, "executed": execute, "partitions": rows})
        return
    print_rows(rows, ["topic", "partition", "before", "after"])
    if not execute:
        note("Dry run: nothing was changed; --execute sets the offsets.")
