"""`ottla share-groups reset`: sets start offsets as `kafka-share-groups`; a dry run by default."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import group_reset as resets
from ottla.cli.offsets import parse_partitions, within_log
from ottla.cli.output import Failure, usage
from ottla.cli.session import Session, connected
from ottla.cli.share_group_requests import alter, described, start_offsets
from ottla.protocol.topics import TopicPartition


@connected
def reset(
    session: Session,
    group: resets.GroupName,
    names: resets.Names = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All share partitions of the group.")
    ] = False,
    to_earliest: resets.ToEarliest = False,
    to_latest: resets.ToLatest = False,
    to_offset: resets.ToOffset = None,
    to_datetime: resets.ToDatetime = "",
    by_duration: resets.ByDuration = "",
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
      ottla share-groups reset workers --all-topics --to-datetime 2026-03-01T10:00
    """
    way = resets.chosen_way(session, to_earliest, to_latest, to_offset, to_datetime, by_duration)
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
    after = within_log(session, way(partitions))
    if execute:
        alter(session, group, after)
    resets.print_reset(session, group, execute, before, after, "sets the offsets")
