"""`ottla records`: deletes records up to an offset or a time (DeleteRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_topics
from ottla.cli.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    check_existence,
    list_offsets,
    offsets_at,
    parse_partitions,
    parse_time,
)
from ottla.cli.output import Cell, Failure, print_json, print_rows, usage
from ottla.cli.session import Session, connected, explain
from ottla.cli.values import read_json_file
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import LeaderOf, Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla records delete orders:0 --before-offset 1000
  ottla records delete orders --before-time 2026-03-01 --yes
  ottla records delete --file offsets.json     as for kafka-delete-records
"""

# The first version that returns the largest timestamp (KIP-734).
_WITH_MAX_TIMESTAMP = Versions(7)
ALL = -1  # the offset that stands for the end

app = family("Delete records up to an offset or a time.", EXAMPLES)


@app.callback()
def records() -> None:
    """Delete records up to an offset or a time."""


@app.command()
@connected
def delete(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="topic, topic:0 or topic:0,2", show_default=False, autocompletion=complete_topics
        ),
    ] = None,
    before_offset: Annotated[
        int | None,
        typer.Option("--before-offset", help="Delete records below this offset; -1: all."),
    ] = None,
    before_time: Annotated[
        str, typer.Option("--before-time", help="Delete records before this time.")
    ] = "",
    file: Annotated[
        str, typer.Option("--file", help="JSON with partitions and offsets, - for standard input.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")
    ] = False,
) -> None:
    """Delete the first records of partitions. This cannot be undone."""
    targets = _targets(session, names or [], before_offset, before_time, file)
    if not targets:
        raise Failure("no records to delete.")
    if min(targets.values()) < ALL:
        raise usage(
            f"the offset {min(targets.values())} is neither {ALL} (all) nor one of a record."
        )
    check_existence(session, targets)
    text = ", ".join(
        f"{partition} below {'its end' if offset == ALL else offset}"
        for partition, offset in targets.items()
    )
    if not yes and not typer.confirm(f"Delete the records of {text}?", err=True):
        raise Failure("nothing was deleted.")
    rows: list[dict[str, Cell]] = []
    try:
        for partition, offset in targets.items():
            rows.append(_delete(session, partition, offset))
    finally:
        # Also if the cluster is lost meanwhile: what was deleted is deleted.
        if rows:
            _print(session, rows)
    if any(row["error"] for row in rows):
        raise Failure("not all records were deleted.")


def _delete(session: Session, partition: TopicPartition, offset: int) -> dict[str, Cell]:
    rows = [DeleteRecordsPartition(partition_index=partition.partition, offset=offset)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=partition.topic, partitions=rows)],
        timeout_ms=session.timeout_ms,
    )
    first, error = -1, None
    try:
        response = session.call(DeleteRecordsResponse, request, LeaderOf(partition))
        result = response.topics[0].partitions[0]
        first, code = result.low_watermark, result.error_code
        error = explain(code) if code != ErrorCode.NONE else None
    except KafkaError as failure:  # there is no leader
        error = explain(failure.code, failure.message)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "first_offset": first if first >= 0 else None,
        "error": error,
    }


def _print(session: Session, rows: list[dict[str, Cell]]) -> None:
    if session.json:
        print_json(rows)
        return
    failed = any(row["error"] for row in rows)
    print_rows(rows, ["topic", "partition", "first_offset", *(["error"] if failed else [])])


def _targets(
    session: Session, names: list[str], offset: int | None, time: str, path: str
) -> dict[TopicPartition, int]:
    if path:
        if names or offset is not None or time:
            raise usage("--file names the partitions and offsets; leave out the others.")
        return _from_file(path)
    if not names or (offset is None) == (not time):
        raise usage("name partitions with one of --before-offset and --before-time, or --file.")
    partitions = parse_partitions(session, names)
    if offset is not None:
        return dict.fromkeys(partitions, offset)
    ends = offsets_at(session, partitions, LATEST)
    at = offsets_at(session, partitions, parse_time(time))
    _check_times(session, [item for item in partitions if at[item] < 0], ends)
    return {item: at[item] if at[item] >= 0 else ends[item] for item in partitions}


def _check_times(
    session: Session, partitions: list[TopicPartition], ends: Mapping[TopicPartition, int]
) -> None:
    """Raises Failure for a partition whose records have no times, as those of the oldest message
    format: no record of it is found at or after any time, and all of them would be deleted."""
    try:
        newest = list_offsets(
            session, dict.fromkeys(partitions, MAX_TIMESTAMP), versions=_WITH_MAX_TIMESTAMP
        )
    except UnsupportedApiError:
        return  # a broker before Kafka 3.0
    first = offsets_at(session, partitions, EARLIEST)
    for item in partitions:
        if newest[item][1] < 0 and first[item] < ends[item]:
            raise Failure(f"the records of {item} have no timestamps; use --before-offset.")


def _from_file(path: str) -> dict[TopicPartition, int]:
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): int(row["offset"])
            for row in document["partitions"]
        }
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        raise usage(
            f'{path} needs {{"partitions": [{{"topic": "t", "partition": 0, "offset": 10}}]}}.'
        ) from None
