"""`ottla partitions reassign`: replicas to other brokers, in the four steps of Kafka's tool."""

from __future__ import annotations

import random
import shlex
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.cluster_checks import reassignments, throttle_problems
from ottla.cli.completion import complete_topics
from ottla.cli.output import Cell, Failure, bytes_text, note, print_json, print_rows, say, usage
from ottla.cli.reassignment_file import (
    Plan,
    plan_document,
    plan_text,
    read_plan,
    read_topics,
    remove_throttle,
    throttle,
)
from ottla.cli.session import Session, check, connected, explain
from ottla.controller.admin.placement import place
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller, Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla partitions reassign generate orders --brokers 1,2,3 --out plan.json
  ottla partitions reassign execute plan.json --throttle 10000000
  ottla partitions reassign verify plan.json --watch
  ottla partitions reassign cancel plan.json
  ottla partitions reassign list
"""

app = family("Reassign replicas: generate, execute, verify, cancel, list.", EXAMPLES)

KeepThrottle = Annotated[bool, typer.Option("--keep-throttle", help="Do not remove throttles.")]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN.json", show_default=False)]
_WATCH_SECONDS = 1.0


@app.command()
@connected
def generate(
    session: Session,
    topics: Annotated[
        list[str] | None, typer.Argument(show_default=False, autocompletion=complete_topics)
    ] = None,
    brokers: Annotated[
        str, typer.Option("--brokers", help="Target broker ids with commas; none: all.")
    ] = "",
    topics_file: Annotated[
        str, typer.Option("--topics-file", help="JSON file with topics, as for Kafka's tool.")
    ] = "",
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="New replication factor."),
    ] = None,
    ignore_racks: Annotated[bool, typer.Option("--ignore-racks", help="Ignore racks.")] = False,
    out: Annotated[str, typer.Option("--out", "-o", help="Write the plan to this file.")] = "",
    save_current: Annotated[
        str,
        typer.Option(
            "--save-current", help="Write the current assignment to this file, for a rollback."
        ),
    ] = "",
) -> None:
    """Generate a plan for the replicas of topics; nothing is moved."""
    names = [*(topics or ()), *(read_topics(topics_file) if topics_file else ())]
    if not names:
        raise usage("name the topics to move, or --topics-file.")
    current = current_replicas(session, names)
    before = _replicas_before(ongoing(session))
    current |= {item: before[item] for item in current.keys() & before.keys()}
    alive = {row.node_id: row.rack for row in session.client.metadata([]).brokers}
    try:
        wanted = {int(text) for text in brokers.split(",")} if brokers else set(alive)
    except ValueError:
        raise usage(f"--brokers {brokers} is not a list of ids such as 1,2,3.") from None
    if missing := sorted(wanted - set(alive)):
        raise Failure(f"broker {missing[0]} is not alive; see `ottla cluster info`.")
    racks = {item: None if ignore_racks else alive[item] for item in sorted(wanted)}
    proposed: Plan = {}
    for topic in dict.fromkeys(names):
        rows = {item: current[item] for item in current if item.topic == topic}
        factor = replication_factor or max(len(replicas) for replicas in rows.values())
        if factor > len(wanted):
            raise Failure(
                f"{topic} needs {factor} brokers for its replicas, and there are {len(wanted)}; "
                f"--replication-factor {len(wanted)} lowers their number."
            )
        start, shift = random.randrange(len(wanted)), random.randrange(len(wanted))
        placed = place(racks, len(rows), factor, start=start, shift=shift)
        proposed |= {TopicPartition(topic, n): list(placed[n]) for n in placed}
    for path, plan in ((out, proposed), (save_current, current)):
        if path:
            with open(path, "w", encoding="utf-8") as target:
                target.write(plan_text(plan) + "\n")
    if session.json:
        print_json({"current": plan_document(current), "proposed": plan_document(proposed)})
    else:
        say(f"Current partition replica assignment\n{plan_text(current)}\n")
        say(f"Proposed partition reassignment configuration\n{plan_text(proposed)}")


def current_replicas(
    session: Session, topics: Iterable[str], *, without_deleted: bool = False
) -> Plan:
    """The replicas of every partition of topics. Raises Failure for one that does not exist, or
    leaves it out."""
    found: Plan = {}
    for topic in session.client.metadata(list(dict.fromkeys(topics))).topics:
        if not without_deleted or topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(topic.error_code, f"topic {topic.name}")
        for row in topic.partitions:
            found[TopicPartition(topic.name or "", row.partition_index)] = row.replica_nodes
    return found


@app.command()
@connected
def execute(
    session: Session,
    plan_file: PlanArgument,
    throttled: Annotated[
        int | None, typer.Option("--throttle", min=1, help="Bytes per second of each broker.")
    ] = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Allow while other reassignments are in progress.")
    ] = False,
) -> None:
    """Start the reassignment of a plan. Prints the old assignment, for a rollback."""
    plan = read_plan(plan_file)
    before = current_replicas(session, [item.topic for item in plan])
    for item in plan:
        if item not in before:
            raise Failure(f"{item} does not exist; see `ottla topics describe {item.topic}`.")
    moving = ongoing(session)
    if moving and not additional:
        raise Failure(
            "a reassignment is in progress: wait (`ottla partitions reassign list`), or add "
            "--additional."
        )
    before |= _replicas_before(moving)
    old = {item: before[item] for item in plan}
    # A partition that moves is moved back by its old replicas.
    wanted = {
        item: replicas
        for item, replicas in plan.items()
        if item in moving or before[item] != replicas
    }
    if not wanted:
        if session.json:
            print_json({"started": plan_document({}), "before": plan_document(old)})
        else:
            say(f"Nothing to do: {len(plan)} partition(s) are as planned already.")
        return
    if throttled is not None:
        # A throttle replaces the list of replicas of its topic: those that move already stay in it,
        # also those that move by this plan.
        targets = {
            item: _without(row.replicas, row.removing_replicas) for item, row in moving.items()
        }
        throttle(session, before, targets | wanted, throttled)
    problems: dict[TopicPartition, str] = {}
    started: Plan | None = None
    try:
        problems = alter(session, wanted)
        started = {item: wanted[item] for item in wanted if item not in problems}
    finally:
        # Also if a part is refused, or the response is lost: some replicas may move.
        if session.json:
            known = None if started is None else plan_document(started)
            print_json({"started": known, "before": plan_document(old)})
        else:
            say(f"Old assignment (keep it for a rollback):\n{plan_text(old)}\n")
            if started:
                say(f"Reassignment of {len(started)} partition(s) started.")
                if done := len(plan) - len(wanted):
                    say(f"{done} other partition(s) are as planned already.")
                say(f"Check it with `ottla partitions reassign verify {shlex.quote(plan_file)}`.")
    if problems:
        raise Failure(" ".join(problems.values()))


def _replicas_before(moving: Mapping[TopicPartition, OngoingPartitionReassignment]) -> Plan:
    """Metadata has those that are added among the replicas of a partition that moves."""
    return {item: _without(row.replicas, row.adding_replicas) for item, row in moving.items()}


def _without(replicas: list[int], others: list[int]) -> list[int]:
    return [broker for broker in replicas if broker not in others]


def alter(
    session: Session, targets: Mapping[TopicPartition, list[int] | None]
) -> dict[TopicPartition, str]:
    """Why some partitions were refused; the others move, or do not move any more."""
    by_topic: dict[str, list[ReassignablePartition]] = defaultdict(list)
    for item, replicas in targets.items():
        by_topic[item.topic].append(
            ReassignablePartition(partition_index=item.partition, replicas=replicas)
        )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=session.timeout_ms,
        topics=[ReassignableTopic(name=name, partitions=rows) for name, rows in by_topic.items()],
    )
    response = session.call(AlterPartitionReassignmentsResponse, request, Controller())
    check(response.error_code, "reassignment", response.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): f"{topic.name}-{row.partition_index}: "
        f"{explain(row.error_code, row.error_message)}"
        for topic in response.responses
        for row in topic.partitions
        if row.error_code != ErrorCode.NONE
    }


def ongoing(session: Session) -> dict[TopicPartition, OngoingPartitionReassignment]:
    """Reassignments in progress, with the replicas that are added and removed."""
    response = session.call(
        ListPartitionReassignmentsResponse,
        ListPartitionReassignmentsRequest(timeout_ms=session.timeout_ms, topics=None),
        Controller(),
    )
    check(response.error_code, "reassignments", response.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): row
        for topic in response.topics
        for row in topic.partitions
    }


@app.command("list")
@connected
def list_(session: Session) -> None:
    """List reassignments in progress, with the bytes that are left."""
    rows = _progress(session, ongoing(session))
    if session.json:
        print_json(rows)
    else:
        print_rows(map(_readable, rows), _COLUMNS, empty="No reassignment is in progress.")


_COLUMNS = ["topic", "partition", "replicas", "adding", "removing", "copied", "left"]


def _readable(row: dict[str, Cell]) -> dict[str, Cell]:
    sizes = {name: row[name] for name in ("copied", "left")}
    return {**row, **{n: bytes_text(v) for n, v in sizes.items() if isinstance(v, int)}}


def _progress(
    session: Session, moving: dict[TopicPartition, OngoingPartitionReassignment]
) -> list[dict[str, Cell]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for item in moving:
        by_topic[item.topic].append(item.partition)
    brokers = {broker for row in moving.values() for broker in row.replicas}
    sizes = replica_sizes(session, dict.fromkeys(brokers, by_topic))
    rows: list[dict[str, Cell]] = []
    for item, row in sorted(moving.items()):
        old = _without(row.replicas, row.adding_replicas)
        there = [sizes[broker].get(item, 0) for broker in old if broker in sizes]
        whole = max(there, default=0)
        copied = [
            min(whole, sizes[broker].get(item, 0))
            for broker in row.adding_replicas
            if broker in sizes
        ]
        is_known = bool(there) and len(copied) == len(row.adding_replicas)
        rows.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "replicas": row.replicas,
                "adding": row.adding_replicas,
                "removing": row.removing_replicas,
                "copied": sum(copied) if is_known else None,
                "left": whole * len(copied) - sum(copied) if is_known else None,
            }
        )
    return rows


def replica_sizes(
    session: Session, wanted: Mapping[int, Mapping[str, Iterable[int]]]
) -> dict[int, dict[TopicPartition, int]]:
    """The bytes of replicas; `wanted` has partitions by broker and topic. Without the brokers that
    do not say, such as one that is down and is replaced. Of a replica that moves between two
    directories, those of the larger copy."""
    found: dict[int, dict[TopicPartition, int]] = {}
    for broker, topics in sorted(wanted.items()):
        asked = [DescribableLogDirTopic(topic=t, partitions=sorted(n)) for t, n in topics.items()]
        try:
            response = session.call(
                DescribeLogDirsResponse, DescribeLogDirsRequest(topics=asked), Node(broker)
            )
        except ClientError:
            continue
        if response.error_code != ErrorCode.NONE:  # the user may not
            continue
        sizes = found.setdefault(broker, {})
        for directory in response.results:
            for topic in directory.topics:
                for row in topic.partitions:
                    partition = TopicPartition(topic.name, row.partition_index)
                    sizes[partition] = max(sizes.get(partition, 0), row.partition_size)
    return found


@app.command()
@connected
def verify(
    session: Session,
    plan_file: PlanArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait until it is complete, with progress.")
    ] = False,
    keep_throttle: KeepThrottle = False,
) -> None:
    """Check a plan and remove its throttles if it is complete. Exit code 1 if it is not."""
    plan = read_plan(plan_file)
    if watch:
        _watch(session, plan)
    moving = ongoing(session)
    now = current_replicas(session, [item.topic for item in plan], without_deleted=True)
    rows: list[dict[str, Cell]] = []
    for item, target in sorted(plan.items()):
        if item in moving:
            state = "in progress"
        elif now.get(item) == target:
            state = "complete"
        elif item not in now:
            state = "does not exist"
        else:
            state = "not as planned"
        rows.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "planned": target,
                "replicas": now.get(item, []),
                "state": state,
            }
        )
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, ["topic", "partition", "planned", "replicas", "state"])
    open_rows = [row for row in rows if row["state"] != "complete"]
    if not any(item in moving for item in plan) and not keep_throttle:
        end_throttle(session, plan, moving)
        _name_throttles_left(session)
    if open_rows:
        raise Failure(f"{len(open_rows)} of {len(rows)} partition(s) are not as planned yet.")


def end_throttle(
    session: Session, done: Iterable[TopicPartition], moving: Collection[TopicPartition]
) -> None:
    """Brokers have one rate for all reassignments, so it stays until the last one is complete."""
    if moving:
        note("Throttles stay while other reassignments are in progress; verify removes them later.")
    else:
        remove_throttle(session, dict.fromkeys(item.topic for item in done), session.broker_ids())


def _name_throttles_left(session: Session) -> None:
    """Of topics that are in another plan, or of a plan that nobody has verified: they slow down
    the replication of a broker that starts again, too."""
    metadata = session.client.metadata(None)
    for problem in throttle_problems(session, metadata, reassignments(session, metadata)):
        note(f"{problem.finding}; {problem.fix}")


def _watch(session: Session, plan: Plan) -> None:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import (
        TaskID as Bar,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    bars: dict[TopicPartition, Bar] = {}
    with Progress(*columns, transient=True) as progress:
        while moving := {k: v for k, v in ongoing(session).items() if k in plan}:
            for row in _progress(session, moving):
                item = TopicPartition(str(row["topic"]), int(str(row["partition"])))
                copied, left = int(str(row["copied"] or 0)), int(str(row["left"] or 0))
                if item not in bars:
                    bars[item] = progress.add_task(str(item), total=copied + left)
                progress.update(bars[item], completed=copied, total=copied + left)
            for item in bars.keys() - moving.keys():
                progress.update(bars[item], completed=progress.tasks[bars[item]].total)
            time.sleep(_WATCH_SECONDS)


@app.command()
@connected
def cancel(
    session: Session,
    plan_file: Annotated[
        str, typer.Argument(metavar="[PLAN.json]", help="None: all reassignments in progress.")
    ] = "",
    keep_throttle: KeepThrottle = False,
) -> None:
    """Cancel reassignments; replicas that were being added are removed."""
    moving = ongoing(session)
    chosen = [item for item in (read_plan(plan_file) if plan_file else moving) if item in moving]
    if not chosen:
        note("No such reassignment is in progress.")
        _name_throttles_left(session)
        return
    problems = alter(session, dict.fromkeys(chosen))
    cancelled = [item for item in chosen if item not in problems]
    if not keep_throttle:
        end_throttle(session, chosen, moving.keys() - set(cancelled))
        _name_throttles_left(session)
    if session.json:
        print_json({"cancelled": [str(item) for item in cancelled]})
    elif cancelled:
        say(f"Cancelled: {', '.join(map(str, cancelled))}.")
    if problems:
        raise Failure(" ".join(problems.values()))
