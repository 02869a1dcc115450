"""The share consumer program on Apache Kafka 4.3 in KRaft mode: the same deliveries as on Ottla.

    python -m tests.compat.share.run

The jars are in `.cache/kafka-4.3.1/lib`, where Maven puts them the first time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.share.work import compile_work, consume, expected, values
from tests.doubles.kraft_kafka import VERSION, start_kraft


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with start_kraft(directory) as bootstrap:
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic("work", 1, 1)])["work"].result(60)
            found = consume(
                *(bootstrap, "work", "workers", compile_work(directory)),
                *(directory / "consumer.log", values()),
            )
    print(f"Apache Kafka {VERSION}: {len(found)} records")
    for value, deliveries in sorted(found.items()):
        print(f"  {value}: {deliveries}")
    assert found == expected(), "not what Ottla does"
    print("the same deliveries as on Ottla")


if __name__ == "__main__":
    main()
