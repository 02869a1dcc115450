"""What a share group has stored (KIP-932), compared with the log and with what its workers saw.

The records of `__share_group_state` are read as a new share coordinator would read them, so this
shows what is durable, not what a broker has in memory. An acknowledgement without a response is no
guess any more: its record is stored as delivered for good, or it is delivered again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.broker.share.coordinator.records import StateRecord, read_record
from ottla.broker.share.coordinator.share_coordinator import ShareStatePartition
from ottla.broker.share.coordinator.state import ShareState
from ottla.broker.share.persister import RecordState
from tests.doubles.share_workers import ACCEPT, DELIVERY_LIMIT, REJECT, WARM, Event

STATE_TOPIC = "__share_group_state"
_FINAL_STATES = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
_READ_SECONDS = 60.0


class Stored(NamedTuple):
    """The records of one topic, and the state of its share partitions, by partition."""

    #: Value and offset of each record.
    records: Mapping[int, list[tuple[int, str]]]
    states: Mapping[int, ShareState]
    #: What a share coordinator never does, found in its records.
    problems: list[str]

    def unfinished(self) -> list[str]:
        """The records that are not stored as delivered for good."""
        return [
            f"{value} at {partition}:{offset} is {_state_at(state, offset)}"
            for partition, records in self.records.items()
            for state in (self.states.get(partition),)
            for offset, value in records
            if not _is_final(state, offset)
        ]

    def compared(self, seen: Mapping[str, list[Event]], produced: Iterable[str]) -> list[str]:
        """What breaks a promise: a record that is lost, that is in the log twice, that is stored
        as delivered for good though no worker acknowledged it, or whose confirmed acknowledgement
        is not stored."""
        problems = list(self.problems)
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for partition, records in self.records.items():
            for offset, value in records:
                places[value].append((partition, offset))
        for value in produced:
            found = places.get(value, [])
            if len(found) != 1:
                problems.append(f"{value} is in the log {len(found)} times")
                continue
            ((partition, offset),) = found
            problem = _problem(self.states.get(partition), offset, seen.get(value, []))
            if problem:
                problems.append(f"{value} at {partition}:{offset} {problem}")
        return problems


def _problem(state: ShareState | None, offset: int, events: list[Event]) -> str:
    final = [event for event in events if event.acknowledged in (ACCEPT, REJECT)]
    if not _is_final(state, offset):
        if any(event.is_confirmed for event in final):
            return f"is stored as {_state_at(state, offset)}, after {final}"
        return f"is stored as {_state_at(state, offset)}"
    is_past_limit = any(event.delivery_count >= DELIVERY_LIMIT for event in events)
    if not final and not is_past_limit:
        return f"is stored as delivered for good, but no worker acknowledged it: {events}"
    return ""


def _is_final(state: ShareState | None, offset: int) -> bool:
    if state is None:
        return False
    return offset < state.start_offset or _batch_state(state, offset) in _FINAL_STATES


def _batch_state(state: ShareState, offset: int) -> int | None:
    for batch in state.batches:
        if batch.first_offset <= offset <= batch.last_offset:
            return batch.state
    return None


def _state_at(state: ShareState | None, offset: int) -> str:
    if state is None:
        return "without state"
    found = _batch_state(state, offset)
    return "never acknowledged" if found is None else f"in state {found}"


class StateReplay:
    """Replays the records of `__share_group_state` for one group, and checks their order."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._partition = ShareStatePartition(0, 0)
        self.problems: list[str] = []

    def add(self, key: bytes, value: bytes | None, offset: int) -> None:
        record = read_record(key, value)
        if record is None or record.key.group_id != self._group:
            return
        before = self._partition.states.get(record.key)
        self._partition.replay(record, offset)
        self._check(record, before, offset)

    def _check(self, record: StateRecord, before: ShareState | None, offset: int) -> None:
        after = self._partition.states.get(record.key)
        if after is None:
            if record.update is not None:
                self.problems.append(f"update without snapshot: {record.key} at {offset}")
            return
        highest = max((batch.delivery_count for batch in after.batches), default=0)
        if highest > DELIVERY_LIMIT:
            self.problems.append(f"delivered {highest} times: {record.key} at {offset}")
        if before is None or after.state_epoch > before.state_epoch:
            return
        if after.start_offset < before.start_offset:
            self.problems.append(f"the start offset decreases: {record.key} at {offset}")
        written = record.update.leader_epoch if record.update is not None else after.leader_epoch
        if written < before.leader_epoch:
            self.problems.append(f"the leader epoch decreases: {record.key} at {offset}")

    def states_of(self, topic_id: bytes) -> dict[int, ShareState]:
        return {
            key.partition: state
            for key, state in self._partition.states.items()
            if key.topic_id == topic_id
        }


def read_stored(bootstrap: str, topic: str, group: str) -> Stored:
    """Reads the topic and `__share_group_state` up to their ends."""
    replay = StateReplay(group)
    for message in _messages(bootstrap, STATE_TOPIC):
        replay.add(message.key(), message.value(), message.offset())
    records: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for message in _messages(bootstrap, topic):
        value = message.value().decode()
        if not value.startswith(WARM):
            records[message.partition()].append((message.offset(), value))
    return Stored(records, replay.states_of(_topic_id(bootstrap, topic)), replay.problems)


def _topic_id(bootstrap: str, topic: str) -> bytes:
    from confluent_kafka import TopicCollection

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(_READ_SECONDS).topic_id
    high, low = (
        bits & (1 << 64) - 1
        for bits in (found.get_most_significant_bits(), found.get_least_significant_bits())
    )
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


def _messages(bootstrap: str, topic: str) -> Iterable[Any]:
    """All messages of a topic, each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "stored-share-states",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        metadata = consumer.list_topics(topic, timeout=_READ_SECONDS).topics[topic]
        left = set(metadata.partitions)
        consumer.assign([TopicPartition(topic, index, 0) for index in left])
        while left:
            message = consumer.poll(_READ_SECONDS)
            assert message is not None, f"{topic}: no message of partitions {left}"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not error.retriable():
                raise AssertionError(f"{topic}: {error}")
    finally:
        consumer.close()
