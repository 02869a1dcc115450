"""`ottla partitions`: under-replicated, elect-leaders, reassign."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import typer

from ottla.broker.cluster.cluster_problems import is_under_replicated
from ottla.cli.app import family
from ottla.cli.broker_status import BrokerStatus, read_all
from ottla.cli.cluster_checks import reassignments
from ottla.cli.completion import complete_topics
from ottla.cli.copies import COLUMNS, progress_rows, readable
from ottla.cli.offsets import parse_partitions
from ottla.cli.output import Cell, Failure, print_json, print_rows, usage
from ottla.cli.reassign import app as reassign
from ottla.cli.session import HttpOption, Session, check, connected, explain
from ottla.cli.values import read_json_file
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla partitions under-replicated
  ottla partitions progress                what is left to copy, and how long
  ottla partitions elect-leaders           preferred leaders of all partitions
  ottla partitions elect-leaders orders:0 --unclean
  ottla partitions reassign generate orders --brokers 1,2,3 --out plan.json
  ottla partitions reassign execute plan.json
  ottla partitions reassign verify plan.json --watch
"""

app = family("Elect leaders, reassign replicas, list under-replicated.", EXAMPLES)
app.add_typer(reassign, name="reassign")

PREFERRED, UNCLEAN = 0, 1
# A broker that does not respond on its HTTP port must not hold the command up.
STATUS_SECONDS = 2.0


@app.command("under-replicated")
@connected
def under_replicated(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these topics.", show_default=False, autocompletion=complete_topics
        ),
    ] = None,
) -> None:
    """List under-replicated and offline partitions. Exit code 1 if there are any.

    Replicas that a reassignment in progress adds do not count: see `ottla partitions progress`.
    """
    metadata = session.client.metadata(topics or None)
    found = metadata.topics
    for topic in found if topics else ():
        check(topic.error_code, f"topic {topic.name}")
    less = [
        (topic.name or "", item)
        for topic in found
        for item in topic.partitions
        if item.leader_id < 0 or is_under_replicated(item.replica_nodes, item.isr_nodes)
    ]
    adding = (reassignments(session, metadata) if less else None) or {}
    rows: list[dict[str, Cell]] = [
        {
            "topic": name,
            "partition": item.partition_index,
            "leader": item.leader_id if item.leader_id >= 0 else None,
            "replicas": item.replica_nodes,
            "in_sync": item.isr_nodes,
            "missing": [
                broker for broker in item.replica_nodes if broker not in (*item.isr_nodes, *added)
            ],
            "offline": item.offline_replicas,
        }
        for name, item in less
        for added in (adding.get((name, item.partition_index), ()),)
        if item.leader_id < 0 or is_under_replicated(item.replica_nodes, item.isr_nodes, added)
    ]
    if session.json:
        print_json(rows)
    else:
        columns = ["topic", "partition", "leader", "replicas", "in_sync", "missing", "offline"]
        empty = "Only replicas of a reassignment in progress are not in sync."
        print_rows(rows, columns, empty=empty if less else "Every replica is in sync.")
    if rows:
        raise Failure(f"{len(rows)} partition(s) are under-replicated or offline.")


@app.command()
@connected
def progress(session: Session, http: HttpOption = None) -> None:
    """Show what replicas have left to copy, by broker, and how long that takes.

    They are those of reassignments, and of brokers that were away.
    """
    states = {
        each.broker_id: each
        for each in read_all(session, http or (), STATUS_SECONDS)
        if isinstance(each, BrokerStatus) and each.broker_id is not None
    }
    rows = progress_rows(session, session.client.metadata(None), states)
    if session.json:
        print_json(rows)
    else:
        print_rows(map(readable, rows), COLUMNS, empty="Every replica is in sync.")


@app.command("elect-leaders")
@connected
def elect_leaders(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="topic, topic:0 or topic:0,2; none: all.",
            show_default=False,
            autocompletion=complete_topics,
        ),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect a live replica outside the ISR if needed: can lose records."
        ),
    ] = False,
    file: Annotated[str, typer.Option("--file", help="JSON file of kafka-leader-election.")] = "",
) -> None:
    """Elect the preferred leader of each partition."""
    if file and names:
        raise usage("name partitions or --file, not both.")
    if file:
        chosen: list[TopicPartition] | None = _from_file(file)
    else:
        chosen = parse_partitions(session, names, must_exist=False) if names else None
    if unclean and chosen is None:
        raise usage("name the partitions for --unclean: it can lose records.")
    by_topic: dict[str, list[int]] = defaultdict(list)
    for item in chosen or ():
        by_topic[item.topic].append(item.partition)
    request = ElectLeadersRequest(
        election_type=UNCLEAN if unclean else PREFERRED,
        topic_partitions=None
        if chosen is None
        else [TopicPartitions(topic=topic, partitions=n) for topic, n in by_topic.items()],
        timeout_ms=session.timeout_ms,
    )
    response = session.call(ElectLeadersResponse, request, Controller())
    if response.error_code:
        raise Failure(explain(response.error_code))
    rows: list[dict[str, Cell]] = []
    failed = 0
    for topic in response.replica_election_results:
        for row in topic.partition_result:
            if row.error_code == ErrorCode.NONE:
                result = "elected"
            elif row.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                result = "not needed"
            else:
                result = explain(row.error_code, row.error_message)
                failed += 1
            rows.append({"topic": topic.topic, "partition": row.partition_id, "result": result})
    if session.json:
        print_json(rows)
    else:
        columns = ["topic", "partition", "result"]
        print_rows(rows, columns, empty="Every partition has its preferred leader.")
    if failed:
        raise Failure(f"{failed} election(s) failed.")


def _from_file(path: str) -> list[TopicPartition]:
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        rows = document["partitions"]
        return [TopicPartition(str(row["topic"]), int(row["partition"])) for row in rows]
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        raise usage(
            f'{path} needs {{"partitions": [{{"topic": "orders", "partition": 0}}]}}.'
        ) from None
