"""A crash of a broker of whose directory a segment was moved away and the checkpoints are lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.broker_process import BrokerProcess, start_broker

RECORDS = 400
CHECKPOINT = "recovery-point-offset-checkpoint"


def read(broker: BrokerProcess) -> list[int]:
    """The offsets of all records."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[int] = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            offset = message.offset()
            assert offset is not None
            found.append(offset)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(
    "content", [None, b"", b"\0" * 12, b"0\n1\nother 0 5\n", b"0\n1\nt 0 9999\n"]
)
def test_what_is_behind_a_gap_is_served(tmp_path: Path, content: bytes | None) -> None:
    with start_broker(tmp_path) as broker:
        config = {"segment.bytes": "4000"}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics([NewTopic("t", 1, 1, config=config)]).values():
            created.result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 5})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number + b"." * 50, partition=0)
        assert producer.flush(30) == 0
        broker.kill()
        (folder,) = tmp_path.rglob("t-0")
        segments = sorted(folder.glob("*.log"))
        moved, following = int(segments[3].stem), int(segments[4].stem)
        segments[3].unlink()
        checkpoint = folder.parent / CHECKPOINT
        if content is not None:
            checkpoint.write_bytes(content)
        else:
            checkpoint.unlink(missing_ok=True)
        broker.start()
        assert read(broker) == [*range(moved), *range(following, RECORDS)]
        assert f"Offsets {moved} to {following - 1} are missing" in broker.log()
