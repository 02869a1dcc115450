"""Members of the consumer protocol whose heartbeat responses are lost."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, Producer

from ottla.protocol.registry import ApiKey
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.losing_proxy import LosingProxy

TOPIC, GROUP = "t", "g"
RECORDS = 600
# Less than the session timeout of 45 s, until which a fenced member could be kept out.
SECONDS = 40.0


def test_a_member_is_taken_back_at_once(tmp_path: Path) -> None:
    """The first response and every third one after it is lost: members rejoin with epoch 0."""
    numbers = itertools.count()
    proxy = LosingProxy(ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda _: next(numbers) % 3 == 0)
    address = f"127.0.0.1:{proxy.port}"
    with start_broker(tmp_path, advertised_listeners=f"PLAINTEXT://{address}") as broker:
        proxy.broker_port = broker.port
        CommandLine(address).done("topics", "create", TOPIC, "--partitions", "6")
        producer = Producer({"bootstrap.servers": address, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number))
        assert producer.flush(60) == 0
        found: Counter[int] = Counter()
        ended = threading.Event()
        members = [
            threading.Thread(target=consume, args=(address, found, ended), daemon=True)
            for _ in range(3)
        ]
        for member in members:
            member.start()
        eventually(lambda: len(found) == RECORDS, lambda: len(found), seconds=SECONDS)
        ended.set()
        for member in members:
            member.join(60)
        assert set(found.values()) == {1}
        assert proxy.lost >= 2
    proxy.close()


def consume(address: str, found: Counter[int], ended: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    while not ended.is_set():
        for message in consumer.consume(50, 0.1):
            if not message.error():
                found[int(message.value() or b"-1")] += 1
    consumer.close()
