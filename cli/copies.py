"""What replicas still have to copy, by broker: of reassignments, and of brokers that restarted.

A size is that of the files of a replica, as in Kafka's reassignment tool. What is left is the
difference to the leader, so it is about right where retention or compaction differs.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.output import Cell, Failure, bytes_text
from ottla.cli.reassign import ongoing, replica_sizes
from ottla.protocol.client.errors import ClientError
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.broker_status import BrokerStatus
    from ottla.cli.session import Session
    from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

COLUMNS = ["broker", "reassigned", "out_of_sync", "left", "rate", "time_left", "state"]

#: Between the two looks from which a rate is computed.
RATE_SECONDS = 2.0
#: A broker that started within this time may be one of a rolling restart.
RESTART_SECONDS = 3600.0

_Sizes = dict[int, dict[TopicPartition, int]]


class Copying(NamedTuple):
    """A replica that is not in the ISR, and the leader that it copies; -1 without one."""

    broker: int
    partition: TopicPartition
    leader: int


def replicas_out_of_sync(topics: Iterable[MetadataResponseTopic]) -> list[Copying]:
    """The replicas that are not in their ISR."""
    return [
        Copying(broker, TopicPartition(topic.name or "", item.partition_index), item.leader_id)
        for topic in topics
        for item in topic.partitions
        for broker in item.replica_nodes
        if broker not in item.isr_nodes
    ]


def progress_rows(
    session: Session, metadata: MetadataResponse, states: Mapping[int, BrokerStatus]
) -> list[dict[str, Cell]]:
    """A row for each broker that copies, with what is left and how long that takes.

    `rate` is in bytes a second and None where it is not known, as is `seconds_left`. Looks twice if
    there is anything to copy. `states` are those of brokers that report them, by id.
    """
    copying = replicas_out_of_sync(metadata.topics)
    if not copying:
        return []
    adding = _adding(session)
    live = {row.node_id for row in metadata.brokers}
    before, began = left_by_broker(copying, _sizes(session, copying, live)), time.monotonic()
    after = before
    if any(before.values()):
        time.sleep(RATE_SECONDS)
        after = left_by_broker(copying, _sizes(session, copying, live))
    seconds = time.monotonic() - began
    return rows_of(copying, adding, before, after, seconds, states)


def rows_of(
    copying: Sequence[Copying],
    adding: Mapping[int, int],
    before: Mapping[int, int],
    after: Mapping[int, int],
    seconds: float,
    states: Mapping[int, BrokerStatus],
) -> list[dict[str, Cell]]:
    """`before` and `after` are what brokers had left, with `seconds` in between."""
    counts = Counter(each.broker for each in copying)
    rows: list[dict[str, Cell]] = []
    for broker, count in sorted(counts.items()):
        left, state = after.get(broker), states.get(broker)
        rate: int | None = None
        if left is not None and broker in before and seconds > 0:
            rate = max(0, int((before[broker] - left) / seconds))
        rows.append(
            {
                "broker": broker,
                "reassigned": adding.get(broker, 0),
                "out_of_sync": count,
                "left": left,
                "rate": rate,
                "seconds_left": int(left / rate) if left is not None and rate else None,
                "state": None if state is None else _phase(state),
            }
        )
    return rows


def left_by_broker(copying: Iterable[Copying], sizes: _Sizes) -> dict[int, int]:
    """Bytes; without brokers, or leaders, that do not say."""
    left: dict[int, int] = defaultdict(int)
    for broker, partition, leader in copying:
        if broker in sizes and partition in sizes.get(leader, {}):
            whole = sizes[leader][partition]
            left[broker] += max(0, whole - sizes[broker].get(partition, 0))
    return dict(left)


def readable(row: Mapping[str, Cell]) -> dict[str, Cell]:
    """A row for a table."""
    left, rate, seconds = row["left"], row["rate"], row["seconds_left"]
    return {
        **row,
        "left": bytes_text(left) if isinstance(left, int) else None,
        "rate": f"{bytes_text(rate)}/s" if isinstance(rate, int) else None,
        "time_left": duration_text(seconds) if isinstance(seconds, int) else None,
    }


def duration_text(seconds: float) -> str:
    """Two units at most: `3 h 12 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def restart_line(states: Mapping[int, BrokerStatus], rows: Sequence[Mapping[str, Cell]]) -> str:
    """How far a rolling restart is; empty if no broker, or each of them, has restarted lately."""
    uptimes = {
        broker: uptime
        for broker, state in sorted(states.items())
        if isinstance(uptime := state.document.get("uptime_seconds"), int | float)
    }
    restarted = [each for each, uptime in uptimes.items() if uptime < RESTART_SECONDS]
    others = [each for each in uptimes if each not in restarted]
    if not restarted or not others:
        return ""
    copying = [each["broker"] for each in rows if each["broker"] in restarted]
    line = (
        f"{len(restarted)} of {len(uptimes)} brokers started in the last hour "
        f"({', '.join(map(str, restarted))}); others: {', '.join(map(str, others))}"
    )
    return line + (f"; not in sync yet: {', '.join(map(str, copying))}" if copying else "")


def _phase(state: BrokerStatus) -> str:
    reason = state.document.get("reason")
    return "running" if state.document.get("phase") == "running" else str(reason)


def _adding(session: Session) -> Counter[int]:
    """How many partitions are reassigned to each broker; none where that is not known."""
    try:
        moving = ongoing(session)
    except (ClientError, Failure):  # no controller, or the user may not
        return Counter()
    return Counter(broker for row in moving.values() for broker in row.adding_replicas)


def _sizes(session: Session, copying: Iterable[Copying], live: Container[int]) -> _Sizes:
    wanted: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for broker, partition, leader in copying:
        for each in (broker, leader):
            if each in live:
                wanted[each][partition.topic].add(partition.partition)
    return replica_sizes(session, wanted)
