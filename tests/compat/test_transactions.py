"""Exactly once with a real client: confluent-kafka's transactional producer, and its readers."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce

DEADLINE_S = 60.0


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **settings,
        }
    )
    made.init_transactions(DEADLINE_S)
    return made


@contextmanager
def consumer(bootstrap: str, **settings: object) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,
            **settings,
        }
    )
    try:
        yield made
    finally:
        made.close()


def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result(DEADLINE_S)


def read_all(bootstrap: str, topic: str, isolation: str, partitions: int = 1) -> list[bytes]:
    """Everything up to the end, as this isolation level shows it."""
    values: list[bytes] = []
    with consumer(bootstrap, **{"isolation.level": isolation, "enable.partition.eof": True}) as c:
        c.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        ends = 0
        while ends < partitions:
            message = c.poll(DEADLINE_S)
            assert message is not None, "no end of the partition"
            if message.error() is None:
                values.append(message.value())
            else:
                ends += 1
    return values


def assert_committed(bootstrap: str, topic: str, wanted: list[bytes]) -> None:
    """A commit is acknowledged when it is decided, before every partition has its marker."""
    eventually(
        lambda: read_all(bootstrap, topic, "read_committed") == wanted,
        lambda: read_all(bootstrap, topic, "read_committed"),
    )


def test_committed_and_aborted_records(bootstrap: str, topic: str) -> None:
    make_topic(bootstrap, topic)
    p = producer(bootstrap, f"t-{topic}")
    for number in range(4):
        p.begin_transaction()
        for index in range(10):
            p.produce(topic, b"%d-%d" % (number, index))
        if number % 2:
            p.abort_transaction(DEADLINE_S)
        else:
            p.commit_transaction(DEADLINE_S)
    wanted = [b"%d-%d" % (number, index) for number in (0, 2) for index in range(10)]
    assert_committed(bootstrap, topic, wanted)
    assert len(read_all(bootstrap, topic, "read_uncommitted")) >= 20


def test_an_open_transaction_holds_committed_readers_back(bootstrap: str, topic: str) -> None:
    make_topic(bootstrap, topic)
    first, second = producer(bootstrap, f"a-{topic}"), producer(bootstrap, f"b-{topic}")
    first.begin_transaction()
    first.produce(topic, b"open")
    first.flush(DEADLINE_S)
    second.begin_transaction()
    second.produce(topic, b"done")
    second.commit_transaction(DEADLINE_S)
    assert read_all(bootstrap, topic, "read_committed") == []
    first.commit_transaction(DEADLINE_S)
    assert_committed(bootstrap, topic, [b"open", b"done"])


def test_a_second_producer_fences_the_first(bootstrap: str, topic: str) -> None:
    make_topic(bootstrap, topic)
    old = producer(bootstrap, f"t-{topic}")
    old.begin_transaction()
    old.produce(topic, b"old")
    old.flush(DEADLINE_S)
    new = producer(bootstrap, f"t-{topic}")
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(DEADLINE_S)
    assert fenced.value.args[0].fatal()
    new.begin_transaction()
    new.produce(topic, b"new")
    new.commit_transaction(DEADLINE_S)
    assert_committed(bootstrap, topic, [b"new"])


def copy_once(bootstrap: str, source: str, target: str, group: str, limit: int) -> int:
    """One life of a consume-transform-produce application; returns how much it committed."""
    copied = 0
    p = producer(bootstrap, f"copy-{group}")
    with consumer(bootstrap, **{"group.id": group, "isolation.level": "read_committed"}) as c:
        c.subscribe([source])
        deadline = time.monotonic() + DEADLINE_S
        while copied < limit:
            assert time.monotonic() < deadline, f"{copied} of {limit}"
            messages = [m for m in c.consume(7, 1.0) if m.error() is None]
            if not messages:
                continue
            p.begin_transaction()
            for message in messages:
                p.produce(target, message.value())
            p.send_offsets_to_transaction(
                c.position(c.assignment()), c.consumer_group_metadata(), DEADLINE_S
            )
            p.commit_transaction(DEADLINE_S)
            copied += len(messages)
        # What is begun and never ended must not show, and its offsets must not count.
        p.begin_transaction()
        p.produce(target, b"never")
        p.flush(DEADLINE_S)
    return copied


def test_copying_is_exact_through_kills_of_all(tmp_path: Path) -> None:
    with start_broker(tmp_path, group_initial_rebalance_delay_ms="0") as broker:
        make_topic(broker.bootstrap, "source", 2)
        make_topic(broker.bootstrap, "target", 2)
        wanted = [b"%d" % number for number in range(120)]
        produce(broker.bootstrap, "source", map(Outgoing, wanted))
        copied = life = 0
        while copied < len(wanted):
            limit = min(30, len(wanted) - copied)
            copied += copy_once(broker.bootstrap, "source", "target", "copier", limit)
            if life % 2 == 0:
                broker.kill()
                broker.start()
            life += 1
        last = producer(broker.bootstrap, "copy-copier")  # ends what the last life left open
        last.begin_transaction()
        last.commit_transaction(DEADLINE_S)
        found = Counter(read_all(broker.bootstrap, "target", "read_committed", 2))
        assert found == Counter(wanted)
