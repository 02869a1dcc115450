"""`ottla status`: the cluster on one screen."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.cluster.cluster_problems import Problem
from ottla.cli.app import family
from ottla.cli.broker_status import (
    BrokerStatus,
    NoHttpPort,
    NoResponse,
    StatusUnknown,
    read_all,
)
from ottla.cli.cluster_checks import (
    ClusterFinding,
    broker_row,
    cluster_problems,
    internal_topic_problems,
    min_isr_problems,
    partition_counts,
    partition_problems,
    reassignments,
    throttle_problems,
)
from ottla.cli.copies import COLUMNS, progress_rows, readable, restart_line
from ottla.cli.output import Cell, Failure, print_fields, print_json, print_rows, say
from ottla.cli.session import HttpOption, Session, connected
from ottla.protocol.messages.describe_configs import DescribeConfigsResponse

app = family("Show the cluster on one screen: brokers, partitions, problems.")
# A broker that does not respond on its HTTP port must not hold the screen up.
_STATUS_SECONDS = 2.0


@app.command()
@connected
def status(
    session: Session,
    http: HttpOption = None,
) -> None:
    """Print brokers, partitions, progress and problems. Exit code 1 if there is a problem.

    Progress is that of reassignments and of brokers that restarted: what is left to copy, and how
    long that takes.

    `ottla doctor` also connects to each broker, and tells what to do about each problem.

    \b
    Examples:
      ottla status
      ottla status --json
    """
    metadata = session.client.metadata(None)
    partitions = [item for topic in metadata.topics for item in topic.partitions]
    reported = read_all(session, http or (), _STATUS_SECONDS)
    states = {
        each.broker_id: each
        for each in reported
        if isinstance(each, BrokerStatus) and each.broker_id is not None
    }
    brokers: list[dict[str, Cell]] = [
        {
            **broker_row(row, row.node_id, metadata.controller_id, partitions),
            "in_sync": sum(row.node_id in item.isr_nodes for item in partitions),
            "state": _state(states.get(row.node_id)),
        }
        for row in sorted(metadata.brokers, key=lambda each: _place(states, each.node_id))
    ]
    if any("worker" in each.document for each in states.values()):
        for line in brokers:
            line["worker"] = _worker(states.get(int(str(line["broker"]))))
    progress = progress_rows(session, metadata, states)
    restart = restart_line(states, progress)
    adding = reassignments(session, metadata)
    found: list[Problem | ClusterFinding] = [*cluster_problems(metadata)]
    found += partition_problems(metadata, adding)
    found += min_isr_problems(
        lambda request: session.call(DescribeConfigsResponse, request), metadata
    )
    found += throttle_problems(session, metadata, adding)
    found += internal_topic_problems(session, metadata)
    problems = [each.finding for each in found if not each.is_note]
    notes = [each.finding for each in found if each.is_note]
    for each in reported:
        if isinstance(each, NoResponse):
            problems.append(str(each))
        elif isinstance(each, NoHttpPort):
            notes.append(f"{each}; {each.fix}")
        elif isinstance(each, StatusUnknown):
            notes.append(str(each))
    for number, state in states.items():
        problems += [f"broker {number}: {fault.get('problem')}" for fault in state.faults]
    fields: dict[str, Cell] = {
        "cluster_id": metadata.cluster_id,
        "brokers": len(brokers),
        **partition_counts(metadata.topics, adding),
    }
    if session.json:
        document = {**fields, "ok": not problems, "problems": problems, "brokers": brokers}
        print_json({**document, "notes": notes, "progress": progress, "restart": restart})
    else:
        print_fields(fields)
        say("")
        print_rows(brokers, list(brokers[0]) if brokers else [])
        if progress:
            say("\nReplicas that copy, of reassignments and of brokers that restarted:")
            print_rows(map(readable, progress), COLUMNS)
        if restart:
            say(f"\n{restart}")
        for text in notes:
            say(f"\nNOTE     {text}")
        for problem in problems:
            say(f"\nPROBLEM  {problem}")
    if problems:
        raise Failure(f"{len(problems)} problem(s); `ottla doctor` tells what to do about them.")


def _place(states: Mapping[int, BrokerStatus], broker_id: int) -> tuple[str, int, int]:
    """The workers of a machine together, behind brokers that have a machine for themselves."""
    document = states[broker_id].document if broker_id in states else {}
    return str(document.get("machine") or ""), int(document.get("worker") or 0), broker_id


def _worker(found: BrokerStatus | None) -> str | None:
    if found is None or "worker" not in found.document:
        return None
    return f"{found.document['worker']} of {found.document.get('machine')}"


def _state(found: BrokerStatus | None) -> str | None:
    """The state that a broker reports of itself; None if it cannot be read from here."""
    if found is None:
        return None
    if found.document.get("phase") != "running":
        return str(found.document.get("reason"))
    return "faults" if found.faults else "ready"
