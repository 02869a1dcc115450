"""Kafka's own share consumer (`KafkaShareConsumer` of the newest clients) on a broker of one."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.share.work import compile_work, consume, expected, values
from tests.doubles.broker_process import start_broker


def test_records_are_accepted_released_and_rejected_and_stay_so(tmp_path: Path) -> None:
    """The deliveries are those of Apache Kafka 4.3 (`python -m tests.compat.share.run`).

    After a kill of the broker nothing is delivered again.
    """
    classes = compile_work(tmp_path)
    with start_broker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("work", 1, 1)])["work"].result(60)
        arguments = (broker.bootstrap, "work", "workers", classes)
        found = consume(*arguments, tmp_path / "first.log", values())
        assert found == expected()
        broker.kill()
        broker.start()
        arguments = (broker.bootstrap, "work", "workers", classes)
        late = consume(*arguments, tmp_path / "second.log", ["accept-late"])
        assert late == {"accept-late": [(1, "accept")]}
