"""`ottla topics`: list, create, describe, alter, delete, offsets."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.broker.cluster.cluster_problems import is_under_replicated
from ottla.cli.app import family
from ottla.cli.cluster_checks import replicas_being_added
from ottla.cli.completion import complete_topics
from ottla.cli.offsets import EARLIEST, LATEST, list_offsets, parse_offset_time, parse_partitions
from ottla.cli.output import (
    Cell,
    Failure,
    note,
    print_json,
    print_rows,
    say,
    time_text,
    usage,
)
from ottla.cli.session import MARKED_FOR_DELETION, Session, check, connected, sentence
from ottla.cli.topic_describe import IfExistsOption, describe
from ottla.cli.topic_regex import RegexOption, matching_partitions, matching_topics
from ottla.cli.values import ConfigOption, ValidateOption, parse_settings
from ottla.protocol.client.operations import Controller, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.uuids import uuid_to_string

EXAMPLES = """\
  ottla topics list
  ottla topics create orders --partitions 6 -r 3 -c retention.ms=86400000
  ottla topics describe orders
  ottla topics alter orders --partitions 12
  ottla topics offsets orders
  ottla topics delete orders --yes
"""

app = family("List, create, describe, alter and delete topics.", EXAMPLES)
app.command("describe")(describe)

TopicArgument = Annotated[
    str, typer.Argument(help="Topic name.", show_default=False, autocompletion=complete_topics)
]
TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Topic names.", show_default=False, autocompletion=complete_topics),
]
AssignmentOption = Annotated[
    str,
    typer.Option(
        "--replica-assignment",
        help="Brokers of each new partition, the preferred leader first: 0:1,1:2,2:0.",
    ),
]


@app.command("list")
@connected
def list_topics(
    session: Session,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also list internal topics.")
    ] = False,
    regex: RegexOption = "",
) -> None:
    """List topics with the number of partitions and replicas."""
    found = matching_topics(session, regex or ".*", if_exists=True)
    adding = replicas_being_added(session, found)
    rows: list[dict[str, Cell]] = [
        {
            "name": row.name,
            "partitions": len(row.partitions),
            "replication_factor": max((len(p.replica_nodes) for p in row.partitions), default=0),
            "under_replicated": sum(
                is_under_replicated(
                    p.replica_nodes,
                    p.isr_nodes,
                    adding.get((row.name or "", p.partition_index), ()),
                )
                for p in row.partitions
            ),
            "internal": row.is_internal,
            "id": uuid_to_string(row.topic_id),
        }
        for row in found
        if internal or not row.is_internal
    ]
    if session.json:
        print_json(rows)
        return
    columns = ["name", "partitions", "replication_factor", "under_replicated"]
    print_rows(rows, columns, empty="No topics; create one with `ottla topics create NAME`.")


@app.command()
@connected
def create(
    session: Session,
    name: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="Number of partitions; -1: num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", help="Replicas of each; -1: default.replication.factor."
        ),
    ] = -1,
    config: ConfigOption = None,
    replica_assignment: AssignmentOption = "",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    validate_only: ValidateOption = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      ottla topics create orders
      ottla topics create orders -p 6 -r 3 -c cleanup.policy=compact
      ottla topics create orders --replica-assignment 0:1,1:2
    """
    assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
        for number, brokers in enumerate(parse_assignment(replica_assignment))
    ]
    if assignments and (partitions, replication_factor) != (-1, -1):
        raise usage("--replica-assignment excludes --partitions and --replication-factor.")
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=assignments,
        configs=[
            CreatableTopicConfig(name=key, value=value)
            for key, value in parse_settings(config).items()
        ],
    )
    response = session.call(
        CreateTopicsResponse,
        CreateTopicsRequest(
            topics=[topic], timeout_ms=session.timeout_ms, validate_only=validate_only
        ),
        Controller(),
    )
    result = response.topics[0]
    is_going = MARKED_FOR_DELETION in (result.error_message or "")
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists and not is_going:
        note(f"Topic {name} already exists.")
        return
    check(result.error_code, f"topic {name}", result.error_message)
    fields: dict[str, Cell] = {
        "name": result.name,
        "id": uuid_to_string(result.topic_id),
        "partitions": result.num_partitions,
        "replication_factor": result.replication_factor,
        "created": not validate_only,
    }
    if session.json:
        print_json(fields)
        return
    done = "could be created" if validate_only else "created"
    say(
        f"Topic {name} {done}: {_count(result.num_partitions, 'partition')}, "
        f"{_count(result.replication_factor, 'replica')} each."
    )


@app.command()
@connected
def alter(
    session: Session,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", help="New number of partitions, higher than the current."
        ),
    ],
    name: Annotated[
        str, typer.Argument(help="Topic name.", show_default=False, autocompletion=complete_topics)
    ] = "",
    replica_assignment: AssignmentOption = "",
    if_exists: IfExistsOption = False,
    validate_only: ValidateOption = False,
    regex: RegexOption = "",
) -> None:
    """Add partitions. Keys are then mapped to other partitions."""
    assignments = [
        CreatePartitionsAssignment(broker_ids=brokers)
        for brokers in parse_assignment(replica_assignment)
    ]
    topics = [
        CreatePartitionsTopic(name=each, count=partitions, assignments=assignments or None)
        for each in _chosen(session, [name] if name else [], regex, if_exists)
    ]
    response = session.call(
        CreatePartitionsResponse,
        CreatePartitionsRequest(
            topics=topics, timeout_ms=session.timeout_ms, validate_only=validate_only
        ),
        Controller(),
    )
    rows: list[dict[str, Cell]] = []
    problems = []
    for result in response.results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            note(f"Topic {result.name} does not exist.")
        elif result.error_code:
            problems.append(result)
        else:
            rows.append(
                {"name": result.name, "partitions": partitions, "changed": not validate_only}
            )
    if session.json and rows:
        print_json(rows if regex else rows[0])
    elif not session.json:
        for row in rows:
            verb = "could have" if validate_only else "has"
            say(f"Topic {row['name']} {verb} {partitions} partitions.")
    for result in problems:
        check(result.error_code, f"topic {result.name}", result.error_message)


def _chosen(session: Session, names: list[str], regex: str, if_exists: bool) -> list[str]:
    """The names, or the topics that match --regex. Raises Failure without any."""
    if bool(names) == bool(regex):
        raise usage("name topics, or choose them by --regex.")
    if names:
        return names
    found = [row.name or "" for row in matching_topics(session, regex, if_exists=if_exists)]
    if not found:
        note(f"No topic matches --regex {regex}.")
    return found


@app.command()
@connected
def delete(
    session: Session,
    names: TopicsArgument = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")
    ] = False,
    if_exists: IfExistsOption = False,
    regex: RegexOption = "",
) -> None:
    """Delete topics with all records. This cannot be undone."""
    names = _chosen(session, names or [], regex, if_exists)
    if (
        names
        and not yes
        and not typer.confirm(f"Delete {', '.join(names)} with all records?", err=True)
    ):
        raise Failure("nothing was deleted.")
    response = session.call(
        DeleteTopicsResponse,
        DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names], timeout_ms=session.timeout_ms
        ),
        Controller(),
        versions=Versions(6),
    )
    deleted = []
    waiting = []
    problems = []
    for result in response.responses:
        if result.error_code == ErrorCode.NONE and result.error_message:
            waiting.append(result)
        elif result.error_code == ErrorCode.NONE:
            deleted.append(result.name)
        elif result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not if_exists:
            problems.append(result)
    if session.json:
        print_json({"deleted": deleted, "marked": [result.name for result in waiting]})
    else:
        for name in deleted:
            say(f"Topic {name} deleted.")
        for result in waiting:
            say(str(result.error_message))
    if problems:
        raise Failure(
            " ".join(
                sentence(result.error_code, f"topic {result.name}", result.error_message)
                for result in problems
            )
        )


@app.command()
@connected
def offsets(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="topic, topic:0 or topic:0,2; none: all topics.",
            show_default=False,
            autocompletion=complete_topics,
        ),
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            "--time",
            help="Also print the first offset at or after this time; or of max-timestamp, "
            "earliest-local, latest-tiered.",
        ),
    ] = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="Without names: also internal topics.")
    ] = False,
    regex: Annotated[
        list[str] | None,
        typer.Option(
            "--regex",
            help="The topics that match this regular expression, with partitions after a colon: "
            "orders.*:0, :0-2 (without 2), :3- or :-3; repeatable.",
        ),
    ] = None,
) -> None:
    """Print log start and log end offsets of partitions."""
    if names and regex:
        raise usage("name topics, or choose them by --regex.")
    if names:
        partitions = parse_partitions(session, names)
    elif regex:
        partitions = matching_partitions(session, regex, internal=internal)
    else:
        rows_of_all = matching_topics(session, ".*", internal=internal, if_exists=True)
        partitions = parse_partitions(session, [row.name or "" for row in rows_of_all])
    first = list_offsets(session, dict.fromkeys(partitions, EARLIEST))
    last = list_offsets(session, dict.fromkeys(partitions, LATEST))
    at = list_offsets(session, dict.fromkeys(partitions, parse_offset_time(time))) if time else {}
    rows: list[dict[str, Cell]] = []
    for partition in partitions:
        row: dict[str, Cell] = {
            "topic": partition.topic,
            "partition": partition.partition,
            "first": first[partition][0],
            "end": last[partition][0],
            "records_at_most": last[partition][0] - first[partition][0],
        }
        if time:
            offset, timestamp = at[partition]
            row |= {
                "at_time": offset if offset >= 0 else None,
                "timestamp": time_text(timestamp),
            }
        rows.append(row)
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, list(rows[0]) if rows else [], empty="No topics.")


def parse_assignment(text: str) -> list[list[int]]:
    """Kafka's --replica-assignment: commas between partitions, colons between brokers."""
    if not text:
        return []
    try:
        return [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise usage(
            f"--replica-assignment {text}: write brokers with colons, partitions with commas, "
            "for example 0:1,1:2."
        ) from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
