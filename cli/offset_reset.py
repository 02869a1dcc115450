"""Where the offsets of a group are set to: what `ottla groups reset-offsets` and
`ottla share-groups reset` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from ottla.cli.offsets import (
    EARLIEST,
    LATEST,
    now_ms,
    offsets_at,
    offsets_since,
    parse_duration,
    parse_time,
)
from ottla.cli.output import Cell, note, print_json, print_rows, usage
from ottla.cli.session import Session
from ottla.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, int]
#: Offsets for the partitions that the user names.
Way = Callable[[list[TopicPartition]], Offsets]

GroupName = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC...]", help="topic, topic:0 or topic:0,2", show_default=False),
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
