"""Share consumers (KIP-932) in threads, and what must hold for their deliveries.

The clients are those of confluent-kafka. Each record is acknowledged by what its value says, and
every delivery and acknowledgement is in one history.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer

ACCEPT, RELEASE, REJECT = "accept", "release", "reject"
DELIVERY_LIMIT = 5  # group.share.delivery.count.limit
# A commit to a broker that is killed meanwhile can take this long: librdkafka waits.
COMMIT_SECONDS = 10.0
WARM = "warm"  # values that are accepted and not checked

_TYPES = {
    ACCEPT: AcknowledgeType.ACCEPT,
    RELEASE: AcknowledgeType.RELEASE,
    REJECT: AcknowledgeType.REJECT,
}


class Event(NamedTuple):
    """A delivery (`acknowledged` is empty), or an acknowledgement.

    One that is not confirmed had no response: the broker may have stored it.
    """

    value: str
    delivery_count: int
    worker: int
    acknowledged: str = ""
    is_confirmed: bool = True


class ShareHistory:
    """What all workers saw, in the order in which it happened for each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        #: The partitions with a confirmed acknowledgement: their start offset is stored.
        self.partitions: set[int] = set()

    def add(self, events: list[Event]) -> None:
        with self._lock:
            self._events += events

    def by_value(self) -> dict[str, list[Event]]:
        with self._lock:
            events = list(self._events)
        found: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if not event.value.startswith(WARM):
                found[event.value].append(event)
        return found

    def has_begun(self, partitions: int) -> bool:
        """Whether all partitions have a start offset. Until a record of a partition is acknowledged
        its next leader begins at the end of the log, as `share.auto.offset.reset` says."""
        return len(self.partitions) == partitions

    def unfinished(self, values: list[str]) -> list[str]:
        """The values that are neither accepted, rejected, nor past their delivery limit."""
        found = self.by_value()
        return [value for value in values if not _is_finished(found.get(value, []))]

    def problems(self, values: list[str]) -> list[str]:
        """What breaks the promise of a share group: each record is accepted once, or rejected, or
        past its delivery limit, and nothing both."""
        found, known = self.by_value(), set(values)
        problems = [f"{value} was never produced" for value in found if value not in known]
        problems += [f"{value} is not finished" for value in self.unfinished(values)]
        for value, events in sorted(found.items()):
            problems += [f"{value}: {problem}" for problem in _problems(events)]
        return problems


def _is_finished(events: list[Event]) -> bool:
    if any(event.acknowledged in (ACCEPT, REJECT) and event.is_confirmed for event in events):
        return True
    if events and events[-1].acknowledged in (ACCEPT, REJECT):
        return True  # not confirmed, and not delivered again so far
    return any(event.delivery_count >= DELIVERY_LIMIT for event in events)


def _problems(events: list[Event]) -> list[str]:
    problems = []
    final = [
        event for event in events if event.acknowledged in (ACCEPT, REJECT) and event.is_confirmed
    ]
    if len(final) > 1:
        problems.append(f"was acknowledged for good {len(final)} times: {final}")
    counts = [event.delivery_count for event in events if not event.acknowledged]
    if max(counts, default=0) > DELIVERY_LIMIT:
        problems.append(f"was delivered past the limit: {counts}")
    if final:
        late = events[events.index(final[0]) + 1 :]
        if any(not event.acknowledged for event in late):
            problems.append(f"was delivered again after {final[0]}")
    return problems


class ShareWorkers:
    """`count` share consumers of one group on one topic; they run until the block ends."""

    def __init__(self, bootstrap: str, topic: str, group: str, count: int) -> None:
        self.history = ShareHistory()
        self.errors: list[str] = []
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        self._topic = topic
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(index,), daemon=True)
            for index in range(count)
        ]

    def __enter__(self) -> ShareWorkers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _work(self, worker: int) -> None:
        consumer: Any = ShareConsumer(self._settings)
        try:
            consumer.subscribe([self._topic])
            while not self._stopping.is_set():
                self._poll_once(consumer, worker)
        finally:
            consumer.close()

    def _poll_once(self, consumer: Any, worker: int) -> None:
        try:
            messages = [each for each in consumer.poll(0.5) if each.error() is None]
        except KafkaException as problem:
            self.errors.append(str(problem))
            time.sleep(0.1)
            return
        pending: dict[tuple[str, int], list[Event]] = defaultdict(list)
        delivered = []
        for message in messages:
            value, count = message.value().decode(), message.delivery_count()
            kind = _kind(value, count)
            delivered.append(Event(value, count, worker))
            where = message.topic(), message.partition()
            pending[where].append(Event(value, count, worker, kind))
            consumer.acknowledge(message, _TYPES[kind])
        self.history.add(delivered)
        if not messages:
            return
        try:
            results = consumer.commit_sync(COMMIT_SECONDS)
        except KafkaException as problem:
            self.errors.append(str(problem))
            results = {}
        for where, failed in results.items():
            events = pending.pop((where.topic, where.partition))
            if failed is None:
                self.history.add(events)
                self.history.partitions.add(where.partition)
            else:
                # Whatever the error: an attempt whose response was lost may have been stored, and a
                # repeated one is fenced then.
                self._add_unconfirmed(events, str(failed))
        for events in pending.values():
            self._add_unconfirmed(events, "no result")

    def _add_unconfirmed(self, events: list[Event], problem: str) -> None:
        self.errors.append(problem)
        self.history.add([event._replace(is_confirmed=False) for event in events])


def _kind(value: str, delivery_count: int) -> str:
    if value.startswith(REJECT):
        return REJECT
    return RELEASE if value.startswith(RELEASE) and delivery_count == 1 else ACCEPT


def produce(bootstrap: str, topic: str, values: list[str]) -> None:
    """Appends the values exactly once, durable on return."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(120) == 0


def warm(bootstrap: str, topic: str, partitions: int) -> None:
    """Appends a value that is not checked to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for index in range(partitions):
        producer.produce(topic, WARM, partition=index)
    assert producer.flush(120) == 0


def values_of(count: int, first: int = 0) -> list[str]:
    """Most are accepted at once; some are released first, some rejected."""
    kinds = (ACCEPT, RELEASE, ACCEPT, REJECT, ACCEPT)
    return [f"{kinds[number % len(kinds)]}-{number}" for number in range(first, first + count)]
