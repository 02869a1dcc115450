"""`ottla groups reset-offsets`: the options of Kafka's tool; a dry run by default."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from ottla.cli.completion import complete_groups, complete_topics
from ottla.cli.group_members import described
from ottla.cli.group_positions import all_committed, commit
from ottla.cli.offsets import (
    EARLIEST,
    LATEST,
    existing,
    now_ms,
    offsets_at,
    offsets_since,
    parse_duration,
    parse_partitions,
    parse_time,
    within_log,
)
from ottla.cli.output import Cell, Failure, note, print_json, print_rows, say, usage
from ottla.cli.session import Session, connected
from ottla.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, int]
#: Offsets for the partitions that the user names.
Way = Callable[[list[TopicPartition]], Offsets]

GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC...]",
        help="topic, topic:0 or topic:0,2",
        show_default=False,
        autocompletion=complete_topics,
    ),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="Log start offsets.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="Log end offsets.")]
ToOffset = Annotated[int | None, typer.Option("--to-offset", help="One offset for all.")]
ToDatetime = Annotated[
    str, typer.Option("--to-datetime", help="First record at or after 2026-03-01T10:00.")
]
ByDuration = Annotated[
    str, typer.Option("--by-duration", help="As --to-datetime, this long ago: 2h, 7d, PT1H30M.")
]


def chosen_way(
    session: Session,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str,
    by_duration: str,
    *others: tuple[bool, Way],
) -> Way:
    """The one way that the user chose; raises a usage error for none and for several."""
    ways: list[tuple[bool, Way]] = [
        (to_earliest, lambda partitions: offsets_at(session, partitions, EARLIEST)),
        (to_latest, lambda partitions: offsets_at(session, partitions, LATEST)),
        (to_offset is not None, lambda partitions: dict.fromkeys(partitions, to_offset or 0)),
        (bool(to_datetime), lambda p: offsets_since(session, p, parse_time(to_datetime))),
        (
            bool(by_duration),
            lambda p: offsets_since(session, p, max(0, now_ms() - parse_duration(by_duration))),
        ),
        *others,
    ]
    chosen = [way for is_chosen, way in ways if is_chosen]
    if len(chosen) != 1:
        raise usage("choose one of --to-earliest, --to-latest, --to-offset, ...; see --help.")
    return chosen[0]


def print_reset(
    session: Session,
    group: str,
    executed: bool,
    before: Mapping[TopicPartition, int | None],
    after: Offsets,
    effect: str,
) -> None:
    """The offsets before and after; a dry run says what --execute does."""
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
        print_json({"group": group, "executed": executed, "partitions": rows})
        return
    print_rows(rows, ["topic", "partition", "before", "after"])
    if not executed:
        note(f"Dry run: nothing was changed; --execute {effect}.")


@connected
def reset_offsets(
    session: Session,
    group: GroupName,
    names: Names = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has committed.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Committed offsets, for --export.")
    ] = False,
    to_offset: ToOffset = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Add this to the offsets; -10: ten back.")
    ] = None,
    to_datetime: ToDatetime = "",
    by_duration: ByDuration = "",
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
      ottla groups reset-offsets billing --all-topics --to-datetime 2026-03-01
      ottla groups reset-offsets billing orders --by-duration 2h --execute
    """
    way = chosen_way(
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
    print_reset(session, group, execute, offsets, after, "commits the offsets")


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


def _current(session: Session, group: str, partitions: list[TopicPartition]) -> Offsets:
    known = all_committed(session, group)
    ends = offsets_at(session, partitions, LATEST)
    return {item: known[item][0] if item in known else ends[item] for item in partitions}


def _shifted(session: Session, group: str, partitions: list[TopicPartition], by: int) -> Offsets:
    known = all_committed(session, group)
    missing = [item for item in partitions if item not in known]
    if missing:
        raise Failure(f"the group has no committed offset of {missing[0]} to shift.")
    return {item: known[item][0] + by for item in partitions}


def _from_file(path: str, partitions: list[TopicPartition]) -> Offsets:
    found: Offsets = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as source:
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
