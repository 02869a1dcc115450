"""What the broker does by itself: retention and compaction."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce

SECONDS = 30.0
EAGER = {
    "log_initial_task_delay_ms": 0,
    "log_retention_check_interval_ms": 100,
    "log_cleaner_backoff_ms": 100,
}


def create(broker: BrokerProcess, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {name.replace("_", "."): text for name, text in settings.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(SECONDS)


def write(broker: BrokerProcess, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    """One batch a record, so that segments can roll between them."""
    rows = [Outgoing(value, key) for key, value in records]
    produce(broker.bootstrap, topic, rows, seconds=SECONDS, batch_num_messages=1)


def offsets(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "looks"})
    found: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    consumer.close()
    return found


def read_all(broker: BrokerProcess, topic: str) -> list[tuple[bytes, bytes]]:
    _, end = offsets(broker, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reads",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    records: list[tuple[bytes, bytes]] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, f"no end of {topic} at {end}"
        if message.error():
            break
        records.append((message.key(), message.value()))
    consumer.close()
    return records


def test_retention_deletes_old_segments(tmp_path: Path) -> None:
    with start_broker(tmp_path, **EAGER) as broker:
        create(broker, "short", segment_bytes="300", retention_bytes="600")
        write(broker, "short", [(b"key", b"x" * 100)] * 20)
        eventually(
            lambda: offsets(broker, "short")[0] > 0, "no segment was deleted", seconds=SECONDS
        )
        before, end = offsets(broker, "short")
        left = len(read_all(broker, "short"))
        after, _ = offsets(broker, "short")
        assert end == 20
        # Retention may have gone on meanwhile.
        assert end - after <= left <= end - before


def test_compaction_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    with start_broker(tmp_path, **EAGER) as broker:
        create(
            broker,
            "compacted",
            cleanup_policy="compact",
            segment_bytes="1000",
            min_cleanable_dirty_ratio="0.01",
        )
        written = [(b"key-%d" % (number % 5), b"value-%d" % number) for number in range(200)]
        write(broker, "compacted", written)
        eventually(
            lambda: "Compacted up to offset" in broker.log(),
            "nothing was compacted",
            seconds=SECONDS,
        )
        eventually(
            lambda: len(read_all(broker, "compacted")) < 50,
            "it was not compacted enough",
            seconds=SECONDS,
        )
        left = read_all(broker, "compacted")
        assert dict(left) == dict(written)
        assert [record for record in written if record in left] == left, "the order was kept"
