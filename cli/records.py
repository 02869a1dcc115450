"""`ottla records`: deletes records up to an offset or a time (DeleteRecords)."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.offsets import LATEST, offsets_at, parse_partitions, parse_time
from ottla.cli.output import Cell, Failure, print_json, print_rows, usage
from ottla.cli.session import Session, connected, explain
from ottla.cli.values import read_json_file
from ottla.protocol.client.operations import LeaderOf
from ottla.protocol.errors import ErrorCode
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
  ottla records delete --file offsets.json      the file format of kafka-delete-records
"""

app = family("Delete records up to an offset or a time.", EXAMPLES)


@app.callback()
def records() -> None:
    """Delete records up to an offset or a time."""


@app.command()
@connected
def delete(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(help="topic, topic:0 or topic:0,2", show_default=False)
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
    text = ", ".join(
        f"{partition} below {'its end' if offset < 0 else offset}"
        for partition, offset in targets.items()
    )
    if not yes and not typer.confirm(f"Delete the records of {text}?", err=True):
        raise Failure("nothing was deleted.")
    rows: list[dict[str, Cell]] = []
    failed = False
    for partition, offset in targets.items():
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=partition.topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
                    ],
                )
            ],
            timeout_ms=session.timeout_ms,
        )
        response = session.call(DeleteRecordsResponse, request, LeaderOf(partition))
        result = response.topics[0].partitions[0]
        failed = failed or result.error_code != ErrorCode.NONE
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "first_offset": result.low_watermark if result.low_watermark >= 0 else None,
                "error": explain(result.error_code) if result.error_code else None,
            }
        )
    if session.json:
        print_json(rows)
    else:
        columns = ["topic", "partition", "first_offset", *(["error"] if failed else [])]
        print_rows(rows, columns)
    if failed:
        raise Failure("not all records were deleted.")


def _targets(
    session: Session, names: list[str], offset: int | None, time: str, path: str
) -> dict[TopicPartition, int]:
    if path:
        return _from_file(path)
    if not names or (offset is None) == (not time):
        raise usage("name partitions with one of --before-offset and --before-time, or --file.")
    partitions = parse_partitions(session, names)
    if offset is not None:
        return dict.fromkeys(partitions, offset)
    ends = offsets_at(session, partitions, LATEST)
    at = offsets_at(session, partitions, parse_time(time))
    return {item: at[item] if at[item] >= 0 else ends[item] for item in partitions}


def _from_file(path: str) -> dict[TopicPartition, int]:
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): int(row["offset"])
            for row in document["partitions"]
        }
    except (AssertionError, KeyError, TypeError, ValueError):
        raise usage(
            f'{path} needs {{"partitions": [{{"topic": "t", "partition": 0, "offset": 10}}]}}.'
        ) from None
