"""`ottla workers`: the workers of each machine, and the move of partitions between them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Annotated, NamedTuple

import typer

from ottla.cli.app import family
from ottla.cli.cluster_checks import broker_row
from ottla.cli.output import Cell, Failure, note, print_json, print_rows, say
from ottla.cli.reassign import alter, ongoing
from ottla.cli.reassignment_file import Plan, plan_document, remove_throttle, throttle
from ottla.cli.session import Session, connected
from ottla.cli.worker_plan import TooManyReplicas, spread
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller, Node
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla workers list
  ottla workers spread --dry-run
  ottla workers spread --throttle 50000000
  ottla workers spread --workers 1
"""

app = family("List the workers of machines, and spread partitions.", EXAMPLES)

_BROKER_RESOURCE = 4
_STATE = "ottla.broker.state"
_PREFERRED = 0
# Fewer moves at once keep the disks free for clients; the next batch starts when all are complete.
BATCH = 50
_LOOK_SECONDS = 0.5


class Worker(NamedTuple):
    """One worker as its broker reports it; `workers` is how many its machine has."""

    machine: str
    number: int
    workers: int
    broker_id: int


@app.command("list")
@connected
def list_(session: Session) -> None:
    """List the workers of each machine, with their partitions."""
    metadata = session.client.metadata(None)
    partitions = [item for topic in metadata.topics for item in topic.partitions]
    brokers = {row.node_id: row for row in metadata.brokers}
    rows: list[dict[str, Cell]] = [
        {
            "machine": each.machine,
            "worker": each.number,
            **broker_row(
                brokers[each.broker_id], each.broker_id, metadata.controller_id, partitions
            ),
        }
        for each in read_workers(session, metadata)
    ]
    if session.json:
        print_json(rows)
    else:
        columns = list(rows[0]) if rows else []
        print_rows(rows, columns, empty="No broker of the cluster is a worker.")


def read_workers(session: Session, metadata: MetadataResponse) -> list[Worker]:
    """The workers of all machines, sorted. Brokers that are none, or do not tell, are left out."""
    found = []
    for row in metadata.brokers:
        resource = DescribeConfigsResource(_BROKER_RESOURCE, str(row.node_id), [_STATE])
        try:
            response = session.call(
                DescribeConfigsResponse,
                DescribeConfigsRequest(resources=[resource]),
                Node(row.node_id),
            )
            texts = [each.value for result in response.results for each in result.configs]
            document = json.loads(texts[0] or "{}") if texts else {}
        except (ClientError, KafkaError, ProtocolError, ValueError):
            continue
        if isinstance(document.get("worker"), int):
            found.append(
                Worker(
                    str(document["machine"]),
                    document["worker"],
                    document["workers_of_machine"],
                    row.node_id,
                )
            )
    return sorted(found)


@app.command("spread")
@connected
def spread_(
    session: Session,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Leave partitions on the first N workers only."),
    ] = None,
    machine: Annotated[
        str, typer.Option("--machine", help="Host name, if there are several.")
    ] = "",
    throttled: Annotated[
        int | None, typer.Option("--throttle", min=1, help="Bytes per second of each broker.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
) -> None:
    """Move partitions until the workers of a machine have the same share of each topic.

    The command waits until all are moved. If it is interrupted, run it again: it continues.
    """
    there = _workers_of(session, machine)
    if workers is not None and workers > len(there):
        raise Failure(f"the machine has {len(there)} workers; start it with --workers {workers}.")
    ids = [each.broker_id for each in there]
    _wait(session, dry_run=dry_run)
    plan = _plan(session, ids, ids[:workers])
    if dry_run or not plan:
        if session.json:
            print_json({"moved": 0, "plan": plan_document(plan)})
        elif plan:
            rows: list[dict[str, Cell]] = [
                {"partition": str(each), "replicas": plan[each]} for each in sorted(plan)
            ]
            print_rows(rows, ["partition", "replicas"])
        else:
            say("Nothing to move: the workers have the same share of each topic.")
        return
    try:
        _carry_out(session, plan, throttled)
    except KeyboardInterrupt:
        note("Moves that have begun continue. Run the command again for the others.")
        raise
    if session.json:
        print_json({"moved": len(plan), "plan": plan_document(plan)})
    else:
        say(f"{len(plan)} partition(s) moved.")


def _workers_of(session: Session, machine: str) -> list[Worker]:
    found = read_workers(session, session.client.metadata([]))
    machines = sorted({each.machine for each in found})
    if not found:
        raise Failure(
            "no broker of the cluster is a worker of `ottla start --workers`, or this user may not "
            "describe brokers."
        )
    if not machine and len(machines) > 1:
        raise Failure(f"name one of the machines with --machine: {', '.join(machines)}.")
    chosen = [each for each in found if each.machine == (machine or machines[0])]
    if not chosen:
        raise Failure(f"there is no machine {machine}; there are {', '.join(machines)}.")
    missing = sorted(set(range(chosen[0].workers)) - {each.number for each in chosen})
    if missing:
        raise Failure(f"worker {missing[0]} of {chosen[0].machine} is not alive; see its log.")
    return chosen


def _plan(session: Session, machine: list[int], stay: list[int]) -> Plan:
    metadata = session.client.metadata(None)
    current = {
        TopicPartition(topic.name or "", row.partition_index): row.replica_nodes
        for topic in metadata.topics
        for row in topic.partitions
        if set(row.replica_nodes).intersection(machine)
    }
    try:
        return spread(current, machine, stay)
    except TooManyReplicas as error:
        raise Failure(f"{error}.") from None


def _wait(session: Session, *, dry_run: bool = False) -> None:
    """Until no reassignment is in progress: those of an interrupted run, too."""
    moving = ongoing(session)
    if not moving:
        return
    if dry_run:
        note(f"{len(moving)} partition(s) are being reassigned; the plan is that of now.")
        return
    note(f"Waiting for the reassignment of {len(moving)} partition(s).")
    topics = {item.topic for item in moving}
    while ongoing(session):
        time.sleep(_LOOK_SECONDS)
    remove_throttle(session, sorted(topics), session.broker_ids())


def _carry_out(session: Session, plan: Plan, throttled: int | None) -> None:
    rows = sorted(plan)
    before = {
        TopicPartition(topic.name or "", row.partition_index): row.replica_nodes
        for topic in session.client.metadata(sorted({each.topic for each in rows})).topics
        for row in topic.partitions
    }
    for start in range(0, len(rows), BATCH):
        part = {item: plan[item] for item in rows[start : start + BATCH]}
        if throttled is not None:
            throttle(session, before, part, throttled)
        problems = alter(session, part)
        while any(item in part for item in ongoing(session)):
            time.sleep(_LOOK_SECONDS)
        if throttled is not None:
            topics = dict.fromkeys(item.topic for item in part)
            remove_throttle(session, topics, session.broker_ids())
        if problems:
            raise Failure(" ".join(problems.values()))
        _elect(session, list(part))
        note(f"Moved {start + len(part)} of {len(rows)} partition(s).")


def _elect(session: Session, items: list[TopicPartition]) -> None:
    """The new first replicas lead at once, not at the next check of the controller."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for item in items:
        by_topic[item.topic].append(item.partition)
    request = ElectLeadersRequest(
        election_type=_PREFERRED,
        topic_partitions=[
            TopicPartitions(topic=name, partitions=n) for name, n in by_topic.items()
        ],
        timeout_ms=session.timeout_ms,
    )
    session.call(ElectLeadersResponse, request, Controller())
