"""One member of a group in a process of its own, to be killed: prints its partitions on change.

python -m tests.compat.clients.member_process BOOTSTRAP GROUP TOPIC [classic|consumer]
"""

import sys

from confluent_kafka import Consumer

# With the newer protocol the broker says how often members heartbeat.
OF_CLASSIC_MEMBERS = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


def main(bootstrap: str, group: str, topic: str, protocol: str = "classic") -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            **(OF_CLASSIC_MEMBERS if protocol == "classic" else {}),
        }
    )
    consumer.subscribe([topic])
    shown = None
    while True:
        consumer.poll(0.1)
        partitions = sorted(tp.partition for tp in consumer.assignment())
        if partitions != shown:
            shown = partitions
            print(*partitions, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
