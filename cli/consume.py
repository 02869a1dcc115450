"""`ottla consume`: prints records as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_groups, complete_topics
from ottla.cli.group_member import follow_as_member
from ottla.cli.group_positions import commit, committed
from ottla.cli.offsets import (
    EARLIEST,
    LATEST,
    check_existence,
    offsets_at,
    parse_time,
    partitions_of,
)
from ottla.cli.output import Failure, note, usage
from ottla.cli.reader import TopicReader
from ottla.cli.record_format import FORMATS, Formatter, LineOptions, for_terminal, formatter
from ottla.cli.session import Session, connected
from ottla.cli.share_member import consume_shared
from ottla.cli.share_session import AcknowledgeType
from ottla.cli.values import typed_bytes
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

app = family("Read records of a topic.")


@app.command()
@connected
def consume(
    session: Session,
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Start at the first record; the default without --follow."
        ),
    ] = False,
    from_end: Annotated[
        bool, typer.Option("--from-end", help="Start at the end; the default with --follow.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", help="Start at this offset; -5: five before the end.")
    ] = None,
    from_time: Annotated[str, typer.Option("--from-time", help="Start at this time.")] = "",
    until_time: Annotated[str, typer.Option("--until-time", help="Stop before this time.")] = "",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this one; repeatable.")
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            "--group",
            "-g",
            autocompletion=complete_groups,
            help="Start at the offsets of this group and commit; with --follow join it.",
        ),
    ] = "",
    share_group: Annotated[
        str,
        typer.Option(
            "--share-group",
            help="Join this share group, as one of its workers.",
            autocompletion=complete_groups,
        ),
    ] = "",
    acknowledge: Annotated[
        str,
        typer.Option(
            "--acknowledge", help="What a member of a share group does: accept, release or reject."
        ),
    ] = "accept",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle", min=0, help="With --follow: stop after this many seconds without a record."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")
    ] = None,
    find_key: Annotated[
        str | None, typer.Option("--where-key", help="Only records with this key.")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", help=f"{', '.join(FORMATS)}; --json is --format json.")
    ] = "text",
    key: Annotated[bool, typer.Option("--key", "-k", help="Print keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers.")] = False,
    where: Annotated[
        bool, typer.Option("--where", "-w", help="Print partition and offset.")
    ] = False,
    timestamp: Annotated[bool, typer.Option("--timestamp", help="Print the timestamp.")] = False,
    separator: Annotated[
        str, typer.Option("--separator", help="Separator between the parts of a line.")
    ] = "\\t",
    zookeeper: Annotated[
        str,
        typer.Option(
            "--zookeeper",
            help="Join --group as a consumer of Kafka 0.8, in the tree of this ZooKeeper.",
        ),
    ] = "",
    read_committed: Annotated[
        bool,
        typer.Option("--read-committed", help="Skip records of aborted and open transactions."),
    ] = False,
) -> None:
    """Print the existing records; with --follow also new ones.

    \b
    Examples:
      ottla consume orders                          all records, then exit
      ottla consume orders --follow                 new records until Ctrl-C
      ottla consume orders --from-time 2026-03-01T10:00 --max 10 --key --timestamp
      ottla consume orders --partition 0 --offset -5 --json
      ottla consume orders --follow --group readers    as a member of the group
      ottla consume orders --share-group workers --max 1     one record of a queue
      ottla consume orders --zookeeper 127.0.0.1:2181 --group old
    """
    starts = sum((from_beginning, from_end, offset is not None, bool(from_time)))
    if starts > 1:
        raise usage("choose one of --from-beginning, --from-end, --offset and --from-time.")
    begin_ms = parse_time(from_time) if from_time else None
    until_ms = parse_time(until_time) if until_time else None
    show = formatter(
        "json" if session.json else format,
        LineOptions(key, headers, where, timestamp, separator),
    )
    if sys.stdout.isatty() and format != "raw":
        show = for_terminal(show)
    _refuse(
        idle is not None and (not follow or bool(share_group or zookeeper)),
        "--idle needs --follow, and does not go with --share-group and --zookeeper.",
    )
    chosen = bool(partition or until_time) or find_key is not None
    if share_group or acknowledge != "accept":
        _refuse(
            bool(starts or group or chosen or zookeeper or read_committed),
            "a member of a share group gets the records that the group has not delivered, at "
            "the isolation level of the group; leave out --group, --partition, --offset, "
            "--where-key, --read-committed, the times and ends.",
        )
        kind = _acknowledge_type(share_group, acknowledge, follow)
        consume_shared(session, share_group, topic, show, limit, kind, follow=follow)
        return
    if zookeeper:
        _refuse(not group, "--zookeeper needs --group.")
        _refuse(
            starts > from_beginning + from_end or chosen or read_committed,
            "a consumer of Kafka 0.8 reads its assigned partitions from the committed offsets; "
            "leave out --partition, --offset, --where-key, --read-committed and the times.",
        )
        from ottla.cli.zookeeper_consumer import consume_in_group  # few need it

        consume_in_group(session, zookeeper, group, topic, show, limit, from_beginning)
        return
    _refuse(
        bool(follow and until_time),
        "--until-time ends at the records that exist, for which --follow does not wait; "
        "leave out one of both.",
    )
    wanted_key = None if find_key is None else typed_bytes(find_key)

    def is_wanted(record: Record) -> bool:
        return wanted_key is None or record.key == wanted_key

    if group and follow:
        if starts > from_beginning + from_end or partition or until_time:
            raise usage(
                "a group member reads its assigned partitions from the committed offsets; "
                "leave out --partition, --offset and the times."
            )
        follow_as_member(
            session,
            group,
            topic,
            show,
            is_wanted,
            limit,
            from_beginning=from_beginning,
            read_committed=read_committed,
            idle_seconds=idle,
        )
        return
    partitions = _chosen(session, topic, partition)
    positions = _starts(session, partitions, from_beginning, from_end or follow, offset, begin_ms)
    if group and not starts:
        positions |= _committed(session, group, partitions)
    stops = None if follow else _ends(session, partitions, until_ms, read_committed)
    reader = TopicReader(session, positions, stops, read_committed=read_committed)
    with session.waiting_for_cluster() if follow else nullcontext():
        _write(reader, show, is_wanted, limit, idle, flushes=follow)
    if group:
        commit(session, group, reader.positions)


def _write(
    reader: TopicReader,
    show: Formatter,
    is_wanted: Callable[[Record], bool],
    limit: int | None,
    idle_seconds: float | None,
    *,
    flushes: bool,
) -> None:
    """Write records until the reader ends, the limit, or Ctrl-C."""
    written = 0
    out = sys.stdout.buffer
    try:
        for item, record in reader.records(idle_seconds):
            if is_wanted(record):
                with reader.processing(item, record):
                    out.write(show(item.topic, item.partition, record))
                written += 1
            if flushes and reader.at_end_of_response:
                out.flush()
            if written == limit:
                break
    except KeyboardInterrupt:
        note("")
    out.flush()


def _ends(
    session: Session,
    partitions: list[TopicPartition],
    until_ms: int | None,
    read_committed: bool,
) -> dict[TopicPartition, int]:
    """Return the offsets to stop at. With `read_committed` not beyond the last stable offset: what
    comes after it may never be readable."""
    ends = offsets_at(session, partitions, LATEST, read_committed=read_committed)
    if until_ms is None:
        return ends
    until = offsets_at(session, partitions, until_ms, read_committed=read_committed)
    return {item: until[item] if until[item] >= 0 else ends[item] for item in partitions}


def _refuse(is_given: bool, why: str) -> None:
    if is_given:
        raise usage(why)


def _acknowledge_type(share_group: str, name: str, follow: bool) -> AcknowledgeType:
    kinds = {kind.name.lower(): kind for kind in AcknowledgeType if kind != AcknowledgeType.GAP}
    if name not in kinds:
        raise usage(f"--acknowledge {name} is not one of {', '.join(kinds)}.")
    if not share_group:
        raise usage("--acknowledge needs --share-group.")
    if kinds[name] == AcknowledgeType.RELEASE and follow:
        raise usage("with --follow the released records would come again; leave one of both out.")
    return kinds[name]


def _chosen(session: Session, topic: str, numbers: list[int] | None) -> list[TopicPartition]:
    if not numbers:
        return partitions_of(session, topic)
    chosen = [TopicPartition(topic, number) for number in sorted(set(numbers))]
    check_existence(session, chosen)
    return chosen


def _committed(
    session: Session, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Raises Failure for one beyond the end of its log, as after the topic was created again:
    nothing would be read, and later the records up to it would be left out."""
    found = committed(session, group, partitions)
    ends = offsets_at(session, found, LATEST)
    for item, offset in found.items():
        if offset > ends[item]:
            raise Failure(
                f"group {group} has committed offset {offset} of {item}, which ends at "
                f"{ends[item]}; see `ottla groups reset-offsets`."
            )
    return found


def _starts(
    session: Session,
    partitions: list[TopicPartition],
    from_beginning: bool,
    from_end: bool,
    offset: int | None,
    begin_ms: int | None,
) -> dict[TopicPartition, int]:
    first = offsets_at(session, partitions, EARLIEST)
    if offset is None and begin_ms is None and (from_beginning or not from_end):
        return first
    last = offsets_at(session, partitions, LATEST)
    if offset is not None:
        wanted = {p: last[p] + offset if offset < 0 else offset for p in partitions}
        return {p: min(max(wanted[p], first[p]), last[p]) for p in partitions}
    if begin_ms is not None:
        at = offsets_at(session, partitions, begin_ms)
        return {p: at[p] if at[p] >= 0 else last[p] for p in partitions}
    return last
