"""ListOffsets for many partitions, with one request for each leader."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.cli.output import Failure, note, usage
from ottla.cli.session import Session, check
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import ANY_VERSION, LeaderOf, Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition

LATEST = -1
EARLIEST = -2
# Timestamps are 64-bit numbers.
_MAX_TIME_MS = (1 << 63) - 1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
"""Special timestamps of ListOffsets."""
# The first version with EARLIEST_LOCAL (KIP-405).
_WITH_EARLIEST_LOCAL = Versions(8)


def partitions_of(session: Session, topic: str) -> list[TopicPartition]:
    """All partitions of a topic; raises Failure if it does not exist."""
    metadata = session.client.metadata([topic])
    for row in metadata.topics:
        check(row.error_code, f"topic {topic}")
        numbers = sorted(item.partition_index for item in row.partitions)
        return [TopicPartition(topic, number) for number in numbers]
    raise Failure(f"topic {topic} does not exist; see `ottla topics list`.")


def existing(session: Session, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The existing ones of `partitions`, sorted; names the others on standard error."""
    wanted = sorted(partitions)
    found = _leaders(session, (item.topic for item in wanted))
    for item in wanted:
        if item not in found:
            note(f"ottla: {item} is left out: it does not exist any more.")
    return [item for item in wanted if item in found]


def with_leader(session: Session, topics: Iterable[str]) -> set[TopicPartition]:
    """The partitions of topics that have a leader. To look up an offset of another one, also of one
    that does not exist, takes the whole timeout of a request."""
    return {item for item, leader in _leaders(session, topics).items() if leader >= 0}


def _leaders(session: Session, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """The leader of each partition of those topics that exist, -1 for none."""
    names = list(dict.fromkeys(topics))
    return {
        TopicPartition(topic.name or "", row.partition_index): row.leader_id
        for topic in (session.metadata(names).topics if names else ())
        for row in topic.partitions
    }


def check_existence(session: Session, partitions: Iterable[TopicPartition]) -> None:
    """Raises Failure for a partition that does not exist, at once."""
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for item in partitions:
        by_topic[item.topic].append(item)
    for topic, wanted in by_topic.items():
        there = partitions_of(session, topic)
        if missing := sorted(set(wanted).difference(there)):
            raise Failure(
                f"{topic} has no partition {missing[0].partition}; it has {len(there)}, "
                "counted from 0."
            )


def parse_partitions(
    session: Session, texts: Iterable[str], *, must_exist: bool = True
) -> list[TopicPartition]:
    """The partitions that `topic` (all of it), `topic:0` or `topic:0,2,5` name."""
    found: list[TopicPartition] = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not colon:
            found.extend(partitions_of(session, topic))
            continue
        try:
            found.extend(TopicPartition(topic, int(number)) for number in numbers.split(","))
        except ValueError:
            raise usage(f"{text!r} is not topic, topic:partition or topic:0,1,2.") from None
    if must_exist:
        check_existence(session, found)
    return list(dict.fromkeys(found))


def list_offsets(
    session: Session,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    versions: Versions = ANY_VERSION,
) -> dict[TopicPartition, tuple[int, int]]:
    """(offset, timestamp) for the timestamp of each partition; offset -1: no record is that late.

    Raises KafkaError for the first partition with an error.
    """
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in wanted:
        by_leader[session.leader(partition).node_id].append(partition)
    found: dict[TopicPartition, tuple[int, int]] = {}
    for partitions in by_leader.values():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=item.partition, timestamp=wanted[item])
                        for item in partitions
                        if item.topic == topic
                    ],
                )
                for topic in dict.fromkeys(item.topic for item in partitions)
            ],
        )
        response = session.call(
            ListOffsetsResponse, request, LeaderOf(partitions[0]), versions=versions
        )
        for topic_row in response.topics:
            for row in topic_row.partitions:
                partition = TopicPartition(topic_row.name, row.partition_index)
                if row.error_code != ErrorCode.NONE:
                    raise KafkaError(row.error_code, f"offsets of {partition}")
                found[partition] = (row.offset, row.timestamp)
    return found


def offsets_at(
    session: Session,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """The offset of each partition for one timestamp; -1 if no record is that late."""
    wanted = dict.fromkeys(partitions, timestamp)
    response = list_offsets(session, wanted, read_committed=read_committed)
    return {partition: offset for partition, (offset, _) in response.items()}


def local_log_start(session: Session, partition: TopicPartition) -> int | None:
    """The first offset on the leader's own disk; None if it does not say."""
    try:
        wanted = {partition: EARLIEST_LOCAL}
        offset = list_offsets(session, wanted, versions=_WITH_EARLIEST_LOCAL)[partition][0]
    except (UnsupportedApiError, KafkaError):
        return None
    return offset if offset >= 0 else None


def offsets_since(
    session: Session, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """As `offsets_at`; the log end offset where no record is that late."""
    wanted = list(partitions)
    found = offsets_at(session, wanted, timestamp)
    ends = offsets_at(session, wanted, LATEST)
    return {item: found[item] if found[item] >= 0 else ends[item] for item in wanted}


def within_log(session: Session, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Limits offsets to those that exist, with a note, as Kafka's tools do."""
    check_existence(session, wanted)
    first = offsets_at(session, wanted, EARLIEST)
    last = offsets_at(session, wanted, LATEST)
    found: dict[TopicPartition, int] = {}
    for item, offset in wanted.items():
        found[item] = min(max(offset, first[item]), last[item])
        if found[item] != offset:
            note(
                f"{item}: {offset} is outside of {first[item]}..{last[item]}; set to {found[item]}."
            )
    return found


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of "2026-03-01T10:00", "...Z", "...+02:00" or a number itself.

    Without a zone it is local time. Raises Failure with the valid formats, and for a time before
    1970: negative numbers are not times for a broker, but its first and last offset.
    """
    from datetime import datetime

    try:
        is_number = text.isdecimal()
        time_ms = int(text if is_number else datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        time_ms = -1
    if not 0 <= time_ms <= _MAX_TIME_MS:
        raise usage(
            f"{text!r} is not a time: write 2026-03-01T10:00:00, 2026-03-01T10:00:00Z or "
            "milliseconds since 1970."
        )
    return time_ms


# As kafka-get-offsets writes them.
_SPECIAL_TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
}


def parse_offset_time(text: str) -> int:
    """A time, or one of the special timestamps of ListOffsets by name or number."""
    numbers = {str(number): number for number in _SPECIAL_TIMES.values()}
    special = _SPECIAL_TIMES.get(text, numbers.get(text))
    return parse_time(text) if special is None else special


def parse_duration(text: str) -> int:
    """Milliseconds of 90s, 15m, 2h, 7d, 250ms, or of ISO 8601's PT1H30M and P7D."""
    import re

    found = re.fullmatch(r"(\d{1,15})(ms|s|m|h|d)", text.strip().lower())
    factors = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    if found is not None:
        return int(found.group(1)) * factors[found.group(2)]
    iso = re.fullmatch(
        r"P(?:(\d{1,15})D)?(?:T(?:(\d{1,15})H)?(?:(\d{1,15})M)?(?:(\d{1,15}(?:\.\d+)?)S)?)?",
        text.strip().upper(),
    )
    if iso is None or not any(iso.groups()):
        raise usage(f"{text!r} is not a duration: write 90s, 15m, 2h, 7d or PT1H30M.")
    days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
    return int(days * 86_400_000 + hours * 3_600_000 + minutes * 60_000 + seconds * 1000)
