"""`ottla log-dirs`: the log directories of the brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.broker_status import BrokerStatus, read_all
from ottla.cli.cluster_checks import check_identity
from ottla.cli.completion import complete_brokers, complete_topics
from ottla.cli.offsets import parse_partitions
from ottla.cli.output import Cell, Failure, bytes_text, print_json, print_rows
from ottla.cli.session import HttpOption, Session, check, connected, explain
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

app = family("Describe the log directories of the brokers.")

_STATES = {ErrorCode.NONE: "online", ErrorCode.KAFKA_STORAGE_ERROR: "offline"}


@app.command("log-dirs")
@connected
def log_dirs(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            help="topic or topic:0,1; none: all.",
            show_default=False,
            autocompletion=complete_topics,
        ),
    ] = None,
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker", help="Only this broker; repeatable.", autocompletion=complete_brokers
        ),
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="Print a line for each partition.")
    ] = False,
    http: HttpOption = None,
) -> None:
    """Print sizes by log directory, or by partition.

    A directory that takes no records for lack of space is shown as full if the HTTP port of its
    broker can be reached: Kafka's protocol has offline directories only.

    \b
    Examples:
      ottla log-dirs
      ottla log-dirs orders --partitions
    """
    wanted: list[DescribableLogDirTopic] | None = None
    if topics:
        numbers: dict[str, list[int]] = defaultdict(list)
        for partition in parse_partitions(session, topics, must_exist=False):
            numbers[partition.topic].append(partition.partition)
        wanted = [DescribableLogDirTopic(topic=t, partitions=n) for t, n in numbers.items()]
    directories: list[dict[str, Cell]] = []
    rows: list[dict[str, Cell]] = []
    for broker_id in broker or session.broker_ids():
        response = session.call(
            DescribeLogDirsResponse, DescribeLogDirsRequest(topics=wanted), Node(broker_id)
        )
        check(response.error_code, f"broker {broker_id}")
        wrong = check_identity(session, broker_id)
        if wrong is not None:
            raise Failure(f"{wrong.finding}: {wrong.fix}.")
        for result in response.results:
            found: list[dict[str, Cell]] = [
                {
                    "broker": broker_id,
                    "topic": topic.name,
                    "partition": item.partition_index,
                    "size": item.partition_size,
                    "offset_lag": item.offset_lag,
                    "future": item.is_future_key,
                    "directory": result.log_dir,
                }
                for topic in result.topics
                for item in topic.partitions
            ]
            rows.extend(found)
            directories.append(
                {
                    "broker": broker_id,
                    "directory": result.log_dir,
                    "partitions": len(found),
                    "size": sum(
                        item.partition_size for t in result.topics for item in t.partitions
                    ),
                    "disk": result.total_bytes,
                    "free": result.usable_bytes,
                    "state": _STATES.get(result.error_code)
                    or explain(result.error_code).removesuffix("."),
                }
            )
    states = _states(session, http or ())
    for row in directories:
        reported = states.get((row["broker"], row["directory"]))
        if reported == "full" and row["state"] == "online":
            row["state"] = "full"
    if session.json:
        print_json({"directories": directories, "partitions": rows})
    elif partitions:
        rows.sort(key=lambda row: (str(row["topic"]), str(row["partition"]).zfill(9)))
        columns = ["topic", "partition", "broker", "size", "offset_lag", "directory"]
        print_rows(map(_readable, rows), columns, empty="No partitions.")
    else:
        print_rows(map(_readable, directories), list(directories[0]) if directories else [])
    if any(row["state"] not in ("online", "full") for row in directories):
        raise Failure("a log directory is offline; the log of its broker has the reason.")
    if any(row["state"] == "full" for row in directories):
        raise Failure("a log directory is full: free disk space; no restart is needed.")


def _states(session: Session, http: Sequence[str]) -> dict[tuple[Cell, Cell], str]:
    """The directories that brokers report, by broker and path."""
    return {
        (status.broker_id, each["path"]): each["state"]
        for status in read_all(session, http, session.timeout_ms / 1000)
        if isinstance(status, BrokerStatus)
        for each in status.document.get("log_directories", ())
    }


def _readable(row: dict[str, Cell]) -> dict[str, Cell]:
    shown = dict(row)
    for name in ("size", "disk", "free"):
        value = row.get(name)
        if isinstance(value, int):
            shown[name] = bytes_text(value) if value >= 0 else None
    return shown
