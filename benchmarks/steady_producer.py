"""Rows at a steady rate for a while: `python -m benchmarks.steady_producer BOOTSTRAP TOPIC RATE S`.

Records of 100 bytes with the time of their making as timestamp, a hundredth of a second's worth at
a time.
"""

import sys
import time

from confluent_kafka import Producer


def main(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    begun = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - begun) < seconds:
        for number in range(sent, int(passed * rate)):
            producer.produce(topic, b"%0100d" % number)
            sent += 1
        producer.poll(0)
        time.sleep(0.01)
    producer.flush(30)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
