"""`ottla groups reset-offsets`: the options of Kafka's tool; a dry run by default."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Annotated

import typer

from ottla.cli import offset_reset as resets
from ottla.cli.group_members import described
from ottla.cli.group_positions import all_committed, commit
from ottla.cli.offsets import LATEST, existing, offsets_at, parse_partitions, within_log
from ottla.cli.output import Failure, say, usage
from ottla.cli.session import Session, connected
from ottla.protocol.topics import TopicPartition


@connected
def reset_offsets(
    session: Session,
    group: resets.GroupName,
    names: resets.Names = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has committed.")
    ] = False,
    to_earliest: resets.ToEarliest = False,
    to_latest: resets.ToLatest = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Committed offsets, for --export.")
    ] = False,
    to_offset: resets.ToOffset = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Add this to the offsets; -10: ten back.")
    ] = None,
    to_datetime: resets.ToDatetime = "",
    by_duration: resets.ByDuration = "",
    from_file: Annotated[
        str, typer.Option("--from-file", help="Lines of topic,partition,offset.")
    ] = "",
    export: Annotated[
        bool, typer.Option("--export", help="Print topic,partition,offset for --from-file.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the offsets; without it a dry run.")
    ] = False,
) -> None:
    """Set the offsets of a group. The group must have no members.

    \b
    Examples:
      ottla groups reset-offsets billing orders --to-earliest
      ottla groups reset-offsets billing orders:0 --shift-by -100 --execute
      ottla groups reset-offsets billing --all-topics --to-datetime 2026-03-01T10:00 --execute
      ottla groups reset-offsets billing orders --by-duration 2h --execute
    """
    way = resets.chosen_way(
        *(session, to_earliest, to_latest, to_offset, to_datetime, by_duration),
        (to_current, lambda partitions: _current(session, group, partitions)),
        (shift_by is not None, lambda p: _shifted(session, group, p, shift_by or 0)),
        (bool(from_file), lambda partitions: _from_file(from_file, partitions)),
    )
    state = described(session, group).state
    if execute and state not in ("Empty", "Dead"):
        raise Failure(
            f"group {group} is {state}: stop its members first; "
            f"`ottla groups describe {group} --members` shows them."
        )
    before = all_committed(session, group)
    partitions = _partitions(session, names or [], all_topics, before, bool(from_file))
    after = within_log(session, way(partitions))
    if execute:
        commit(session, group, after)
    if export and not session.json:
        for item in sorted(after):
            say(f"{item.topic},{item.partition},{after[item]}")
        return
    offsets = {item: offset for item, (offset, _) in before.items()}
    resets.print_reset(session, group, execute, offsets, after, "commits the offsets")


def _partitions(
    session: Session,
    names: list[str],
    all_topics: bool,
    before: Mapping[TopicPartition, object],
    from_file: bool,
) -> list[TopicPartition]:
    if names:
        return parse_partitions(session, names)
    if all_topics:
        return existing(session, before)
    if from_file:
        return []
    raise usage("name the topics, or --all-topics for all that the group has committed.")


def _current(session: Session, group: str, partitions: list[TopicPartition]) -> resets.Offsets:
    known = all_committed(session, group)
    ends = offsets_at(session, partitions, LATEST)
    return {item: known[item][0] if item in known else ends[item] for item in partitions}


def _shifted(
    session: Session, group: str, partitions: list[TopicPartition], by: int
) -> resets.Offsets:
    known = all_committed(session, group)
    missing = [item for item in partitions if item not in known]
    if missing:
        raise Failure(f"the group has no committed offset of {missing[0]} to shift.")
    return {item: known[item][0] + by for item in partitions}


def _from_file(path: str, partitions: list[TopicPartition]) -> resets.Offsets:
    found: resets.Offsets = {}
    try:
        with open(path, encoding="utf-8", newline="") as source:
            lines = csv.reader(source)
            for row in lines:
                if row:
                    topic, partition, offset = row
                    found[TopicPartition(topic, int(partition))] = int(offset)
    except OSError as error:
        raise usage(f"--from-file {path}: {error.strerror}.") from None
    except (ValueError, csv.Error):
        raise usage(f"{path}:{lines.line_num}: a line is topic,partition,offset.") from None
    return {item: found[item] for item in found if not partitions or item in partitions}
