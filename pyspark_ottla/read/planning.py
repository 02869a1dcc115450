"""Resolves the options to offsets: starts, ends, and the checks for lost records.

Works on a `Cluster`, the few requests that a reader makes; nothing here opens a socket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors, offsets
from pyspark_ottla.errors import DATA_LOSS_WARNING, ConnectorError, data_loss
from pyspark_ottla.offsets import EARLIEST, LATEST, OffsetRange, Offsets, describe, describe_all
from pyspark_ottla.options.options import Position, Subscription
from pyspark_ottla.warnings_on_stderr import spark_logger

logger = spark_logger()


class Cluster(Protocol):
    """The requests of planning. Every method has a deadline and raises ConnectorError."""

    def partitions(self, subscription: Subscription) -> frozenset[TopicPartition]:
        """All partitions subscribed to; fails for a topic named but not there."""

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """For each partition the first offset with at least that timestamp, or LATEST if none.

        The timestamps EARLIEST and LATEST stand for the ends of the log (as far as the isolation
        level lets one read). Partitions that no longer exist are not in the result.
        """

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends of the logs, also behind open transactions."""

    def committed(self, group_id: str, partitions: Collection[TopicPartition]) -> Offsets:
        """The group's committed offsets; partitions without one are not in the result."""


class LossReport:
    """Raises a loss of records, or logs it as a warning as Spark's JVM connector does.

    `action` is fail or warn, from the option failOnDataLoss.
    """

    def __init__(self, action: str) -> None:
        self._action = action

    @property
    def fails(self) -> bool:
        return self._action == "fail"

    def lost(self, condition: str, sentence: str) -> None:
        if self.fails:
            raise data_loss(condition, sentence)
        logger.warning("%s", ConnectorError(condition, sentence, DATA_LOSS_WARNING))


def all_at(cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int) -> Offsets:
    return cluster.offsets_at(dict.fromkeys(partitions, timestamp))


def resolve(
    cluster: Cluster,
    position: Position,
    partitions: Collection[TopicPartition],
    group_id: str | None,
) -> Offsets:
    """The offset of every partition that `position` stands for.

    Raises ConnectorError when a position names other partitions than are read, when a timestamp
    has no offset and the strategy is to fail, or when a partition has gone meanwhile.
    """
    if position.kind == "earliest":
        return _complete(all_at(cluster, partitions, EARLIEST), partitions)
    if position.kind == "latest":
        return _complete(all_at(cluster, partitions, LATEST), partitions)
    if position.kind == "committed":
        assert group_id is not None
        return _resolve_committed(cluster, position, partitions, group_id)
    if position.kind == "offsets":
        _check_assigned(position, partitions, errors.START_OFFSET_DOES_NOT_MATCH_ASSIGNED)
        special = {tp: offset for tp, offset in position.offsets.items() if offset < 0}
        found = _complete(cluster.offsets_at(special), special) if special else {}
        return dict(position.offsets) | found
    wanted = dict.fromkeys(partitions, position.timestamp)
    if position.kind == "timestamps":
        _check_assigned(position, partitions, errors.TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED)
        wanted = dict(position.offsets)
    return _resolve_timestamps(cluster, position, wanted)


def _complete(found: Offsets, partitions: Iterable[TopicPartition]) -> Offsets:
    missing = [tp for tp in partitions if tp not in found]
    if missing:
        raise ConnectorError(
            errors.UNKNOWN_TOPIC,
            f"The brokers do not know {describe_all(missing)} any more",
            "Was the topic deleted just now?",
        )
    return found


def _check_assigned(
    position: Position, partitions: Collection[TopicPartition], condition: str
) -> None:
    given, assigned = set(position.offsets), set(partitions)
    if given == assigned:
        return
    missing, unknown = assigned - given, given - assigned
    parts = []
    if missing:
        parts.append(f"leaves out {describe_all(missing)}")
    if unknown:
        parts.append(f"names {describe_all(unknown)}, which is not read")
    raise ConnectorError(
        condition,
        f"The option {position.option} {' and '.join(parts)}",
        f"Name every partition that is read and no other, like {offsets.EXAMPLE}; "
        "-2 is the earliest offset, -1 the latest",
    )


def _resolve_committed(
    cluster: Cluster,
    position: Position,
    partitions: Collection[TopicPartition],
    group_id: str,
) -> Offsets:
    found = cluster.committed(group_id, partitions)
    missing = [tp for tp in partitions if tp not in found]
    if not missing:
        return found
    if position.if_missing == "error":
        raise ConnectorError(
            errors.NO_COMMITTED_OFFSET,
            f"The group {group_id} has no committed offset for {describe_all(missing)}",
            "Use startingOffsets committed:earliest or committed:latest as the fallback",
        )
    end = EARLIEST if position.if_missing == "earliest" else LATEST
    return found | _complete(all_at(cluster, missing, end), missing)


def _resolve_timestamps(cluster: Cluster, position: Position, wanted: Offsets) -> Offsets:
    found = _complete(cluster.offsets_at(wanted), wanted)
    without = [tp for tp in wanted if found[tp] < 0]
    if not without:
        return found
    if position.if_missing == "error":
        first = min(without)
        raise ConnectorError(
            errors.TIMESTAMP_OFFSET_NOT_FOUND,
            f"No record at or after the timestamp {wanted[first]} of the option "
            f"{position.option} is in {describe_all(without)}",
            "Set startingOffsetsByTimestampStrategy to latest to start there at the end, "
            "or use an earlier timestamp",
        )
    return found | _complete(all_at(cluster, without, LATEST), without)


def batch_ranges(
    cluster: Cluster,
    subscription: Subscription,
    starting: Position | None,
    ending: Position | None,
    group_id: str | None,
    report: LossReport,
) -> list[OffsetRange]:
    """What a batch read takes, resolved once: from earliest to latest unless the options differ."""
    partitions = cluster.partitions(subscription)
    if not partitions:
        return []
    starting = starting or Position("earliest", "startingOffsets")
    ending = ending or Position("latest", "endingOffsets")
    # The end first: records that come in between the two look-ups belong to the next read.
    end = resolve(cluster, ending, partitions, group_id)
    start = resolve(cluster, starting, partitions, group_id)
    _check_start_before_end(starting, ending, start, end)
    if ending.kind == "offsets":
        latest = all_at(cluster, partitions, LATEST)
        end = _check_not_beyond_log_end(end, latest, report, errors.DATA_LOSS_RANGE, "up to")
    if starting.kind in ("offsets", "committed"):
        # A reader of all records may have committed offsets behind an open transaction. What is
        # beyond these ends, too, was lost, or the topic was created again.
        log_ends = cluster.high_watermarks(partitions)
        start = _check_not_beyond_log_end(
            start, log_ends, report, errors.DATA_LOSS_OFFSET_CHANGED, "from"
        )
        earliest = all_at(cluster, partitions, EARLIEST)
        start = check_not_before_log_start(start, earliest, report)
    return [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(partitions)]


def _check_start_before_end(
    starting: Position, ending: Position, start: Offsets, end: Offsets
) -> None:
    """As Spark's JVM connector, whatever failOnDataLoss is: such a range is a mistake.

    Committed offsets may be behind the end of committed records, for as long as a transaction is
    open; whether they are beyond the log is checked later.
    """
    if starting.kind == "committed" and ending.kind == "latest":
        return
    for tp in sorted(start):
        if start[tp] > end[tp]:
            raise ConnectorError(
                errors.RESOLVED_START_GREATER_THAN_END,
                f"{describe(tp)} would be read from offset {start[tp]} ({starting.option}) to "
                f"offset {end[tp]} ({ending.option})",
                "Check in this order: 1. whether the start is beyond the end, or beyond the latest "
                "offset; one of them may be a timestamp and the other one an offset. 2. whether "
                "the topic was deleted and created again",
            )


def _check_not_beyond_log_end(
    wanted: Offsets,
    log_ends: Mapping[TopicPartition, int],
    report: LossReport,
    condition: str,
    direction: str,
) -> Offsets:
    """`wanted`, moved back to where a log ends now; such records are not there (yet, or any more).

    `direction` is "from" for starts and "up to" for ends.
    """
    moved = dict(wanted)
    for tp, offset in wanted.items():
        log_end = log_ends.get(tp, offset)
        if offset > log_end:
            report.lost(
                condition,
                f"{describe(tp)} was to be read {direction} offset {offset}, but ends at {log_end}",
            )
            moved[tp] = log_end
    return moved


def check_not_before_log_start(
    start: Offsets, earliest: Mapping[TopicPartition, int], report: LossReport
) -> Offsets:
    """`start`, moved up to where a log begins now; reports the records in between as lost."""
    moved = dict(start)
    for tp, offset in start.items():
        log_start = earliest.get(tp, offset)
        if offset < log_start:
            report.lost(
                errors.DATA_LOSS_START_RESET,
                f"{describe(tp)} was to be read from offset {offset}, but begins at {log_start} "
                f"now: {log_start - offset} offsets are gone",
            )
            moved[tp] = log_start
    return moved
