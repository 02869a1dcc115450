"""`ottla transactions`: list, describe, find-hanging, abort."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_topics
from ottla.cli.offsets import parse_partitions
from ottla.cli.output import Cell, Failure, print_fields, print_json, print_rows, say, time_text
from ottla.cli.session import Session, check, connected, explain
from ottla.protocol.client.operations import TRANSACTION, CoordinatorOf, LeaderOf, Node, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition

EXAMPLES = """\
  ottla transactions list --state Ongoing
  ottla transactions describe payments-1
  ottla transactions producers orders
  ottla transactions find-hanging --topic orders
  ottla transactions abort orders:0 --start-offset 1234
"""

app = family("List, describe and abort transactions.", EXAMPLES)

# The default of transaction.max.timeout.ms: a coordinator aborts older transactions.
_DEFAULT_MAX_MINUTES = 15
_MINUTE_MS = 60_000


@app.command("list")
@connected
def list_transactions(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Ongoing, CompleteCommit, ...; repeatable.")
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", help="Only this id.")
    ] = None,
    longer_than: Annotated[
        int | None, typer.Option("--longer-than-ms", help="Only transactions that run for longer.")
    ] = None,
) -> None:
    """List transactional ids and the states of their transactions."""
    rows: list[dict[str, Cell]] = []
    for broker in session.broker_ids():
        request = ListTransactionsRequest(
            state_filters=state or [],
            producer_id_filters=producer_id or [],
            duration_filter=-1 if longer_than is None else longer_than,
        )
        versions = Versions() if longer_than is None else Versions(1)
        response = session.call(ListTransactionsResponse, request, Node(broker), versions=versions)
        check(response.error_code, f"broker {broker}")
        if response.unknown_state_filters:
            raise Failure(f"unknown state {response.unknown_state_filters[0]}.")
        rows.extend(
            {
                "transactional_id": row.transactional_id,
                "state": row.transaction_state,
                "producer_id": row.producer_id,
                "coordinator": broker,
            }
            for row in response.transaction_states
        )
    rows.sort(key=lambda row: str(row["transactional_id"]))
    if session.json:
        print_json(rows)
    else:
        columns = ["transactional_id", "state", "producer_id", "coordinator"]
        print_rows(rows, columns, empty="No transactions.")


@app.command()
@connected
def describe(
    session: Session,
    transactional_id: Annotated[str, typer.Argument(show_default=False)],
) -> None:
    """Describe a transactional id: producer, state, start time, partitions."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    route = CoordinatorOf(transactional_id, TRANSACTION)
    found = session.call(DescribeTransactionsResponse, request, route).transaction_states[0]
    check(found.error_code, f"transactional id {transactional_id}")
    fields: dict[str, Cell] = {
        "transactional_id": transactional_id,
        "state": found.transaction_state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.transaction_timeout_ms,
        "started": time_text(found.transaction_start_time_ms),
        "partitions": [f"{t.topic}-{number}" for t in found.topics for number in t.partitions],
    }
    if session.json:
        print_json(fields)
    else:
        print_fields(fields)


@app.command()
@connected
def producers(
    session: Session,
    names: Annotated[
        list[str],
        typer.Argument(help="topic, topic:0 or topic:0,2", autocompletion=complete_topics),
    ],
) -> None:
    """List the producer states of partitions."""
    rows = [
        _producer_row(item, row)
        for item, found in _producers(session, parse_partitions(session, names)).items()
        for row in found
    ]
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, _PRODUCER_COLUMNS, empty="No producers.")


_PRODUCER_COLUMNS = [
    *("topic", "partition", "producer_id", "epoch", "last_sequence", "last_time"),
    *("coordinator_epoch", "transaction_start"),
]


def _producer_row(item: TopicPartition, row: ProducerState) -> dict[str, Cell]:
    start = row.current_txn_start_offset
    return {
        "topic": item.topic,
        "partition": item.partition,
        "producer_id": row.producer_id,
        "epoch": row.producer_epoch,
        "last_sequence": row.last_sequence,
        "last_time": time_text(row.last_timestamp),
        "coordinator_epoch": row.coordinator_epoch,
        "transaction_start": start if start >= 0 else None,
    }


def _producers(
    session: Session, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerState]]:
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for item in partitions:
        by_leader[session.client.leader(item).node_id].append(item)
    found: dict[TopicPartition, list[ProducerState]] = {}
    for items in by_leader.values():
        topics = [
            TopicRequest(
                name=topic, partition_indexes=[i.partition for i in items if i[0] == topic]
            )
            for topic in dict.fromkeys(item.topic for item in items)
        ]
        request = DescribeProducersRequest(topics=topics)
        response = session.call(DescribeProducersResponse, request, LeaderOf(items[0]))
        for topic_row in response.topics:
            for row in topic_row.partitions:
                item = TopicPartition(topic_row.name, row.partition_index)
                check(row.error_code, str(item), row.error_message)
                found[item] = row.active_producers
    return found


@app.command("find-hanging")
@connected
def find_hanging(
    session: Session,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic; repeatable.")
    ] = None,
    max_minutes: Annotated[
        int, typer.Option("--max-minutes", help="Minimum age in minutes.")
    ] = _DEFAULT_MAX_MINUTES,
) -> None:
    """Find open transactions that no coordinator will end. Exit code 1 if there are any."""
    names = topic or [row.name for row in session.client.metadata(None).topics if row.name]
    now_ms = time.time_ns() // 1_000_000
    old = {
        (item, row.producer_id): row
        for item, rows in _producers(session, parse_partitions(session, names)).items()
        for row in rows
        if row.current_txn_start_offset >= 0
        and now_ms - row.last_timestamp > max_minutes * _MINUTE_MS
    }
    known = _open_by_coordinators(session, {producer_id for _, producer_id in old})
    rows = [
        _producer_row(item, row) for (item, pid), row in old.items() if (item, pid) not in known
    ]
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, _PRODUCER_COLUMNS, empty="No transaction hangs.")
    if rows:
        raise Failure(f"{len(rows)} transaction(s) hang; `ottla transactions abort` ends one.")


def _open_by_coordinators(
    session: Session, producer_ids: set[int]
) -> set[tuple[TopicPartition, int]]:
    """The partitions that coordinators have in open transactions of these producers.

    Raises Failure if a coordinator does not say: its transactions are not hanging.
    """
    if not producer_ids:
        return set()
    found: set[tuple[TopicPartition, int]] = set()
    for broker in session.broker_ids():
        listed = session.call(
            ListTransactionsResponse,
            ListTransactionsRequest(producer_id_filters=sorted(producer_ids)),
            Node(broker),
        )
        check(listed.error_code, f"broker {broker}")
        ids = [row.transactional_id for row in listed.transaction_states]
        if ids:
            request = DescribeTransactionsRequest(transactional_ids=ids)
            response = session.call(DescribeTransactionsResponse, request, Node(broker))
            for state in response.transaction_states:
                if state.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    check(state.error_code, f"transactional id {state.transactional_id}")
            found |= {
                (TopicPartition(topic.topic, number), row.producer_id)
                for row in response.transaction_states
                for topic in row.topics
                for number in topic.partitions
            }
    return found


@app.command()
@connected
def abort(
    session: Session,
    partition: Annotated[str, typer.Argument(help="topic:0", show_default=False)],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", help="First offset of the transaction.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", help="Or its producer id.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")
    ] = False,
) -> None:
    """Write an abort marker to one partition, for a hanging transaction."""
    items = parse_partitions(session, [partition])
    if len(items) != 1 or (start_offset is None) == (producer_id is None):
        raise Failure("name one partition with one of --start-offset and --producer-id.", 2)
    item = items[0]
    found = [
        row
        for row in _producers(session, items)[item]
        if row.current_txn_start_offset >= 0
        and (row.producer_id == producer_id or row.current_txn_start_offset == start_offset)
    ]
    if not found:
        raise Failure(
            f"{item} has no such open transaction; `ottla transactions producers {item.topic}` "
            "lists those it has."
        )
    row = found[0]
    if not yes and not typer.confirm(
        f"Abort the transaction of producer {row.producer_id} in {item}?", err=True
    ):
        raise Failure("nothing was aborted.")
    marker = WritableTxnMarker(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=item.topic, partition_indexes=[item.partition])],
        coordinator_epoch=max(0, row.coordinator_epoch),
    )
    response = session.call(
        WriteTxnMarkersResponse, WriteTxnMarkersRequest(markers=[marker]), LeaderOf(item)
    )
    for topic in response.markers[0].topics:
        for result in topic.partitions:
            if result.error_code:
                raise Failure(f"{item}: {explain(result.error_code)}")
    if session.json:
        print_json({"partition": str(item), "aborted": row.producer_id})
    else:
        say(f"The transaction of producer {row.producer_id} in {item} is aborted.")
