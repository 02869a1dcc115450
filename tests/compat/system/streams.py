"""The counting job of `tests.compat.streams` (exactly_once_v2) on the client host."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.compat.streams.run import KEYS, compile_job
from tests.compat.system.cluster import CLIENTS, Cluster
from tests.compat.system.copiers import Arrivals
from tests.compat.system.measures import Findings, check_counts
from tests.compat.system.verifiable import consumer
from tests.doubles.apache_kafka import KAFKA_VERSION
from tests.doubles.kafka_clients import JsonLines, java_command

PARTITIONS = 4
RECORDS_PER_S = 100
END_S = 240.0


class Feed(threading.Thread):
    """Writes records at a steady rate, each exactly once, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True, name="streams-feed")
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer({**settings, "message.timeout.ms": 0})
        self._stopping = threading.Event()
        self.sent: Counter[str] = Counter()

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(1 / RECORDS_PER_S):
            key = f"key-{number % KEYS}"
            try:
                self._producer.produce("in", b"x", key=key, on_delivery=self._delivered)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_TOPIC:
                    raise
                continue  # the topic is new, and the broker that the client asked has not heard
            finally:
                self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # Without any broker the client fails what it has not sent: that is not lost.
        if error is None:
            self.sent[(message.key() or b"").decode()] += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._producer.flush(END_S) == 0


class Streams:
    """The job, its input and its committed counts."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        library = compile_job(KAFKA_VERSION)
        for topic in ("in", "out"):
            cluster.create_topic(topic, PARTITIONS)
        state = directory / "streams"
        state.mkdir()
        command = java_command(library, "CountJob", cluster.bootstrap, str(state), "3")
        place = command.index("-cp") + 1
        command[place] = f"{library.parent / 'job'}:{command[place]}"
        command = [word.replace("-Xmx96m", "-Xmx256m") for word in command]
        on_host = [*cluster.hosts.on(CLIENTS), *command]
        self._job = JsonLines(on_host, directory / "streams.log")
        self._feed = Feed(cluster.bootstrap)
        self._feed.start()
        self.arrivals = Arrivals(cluster, "out", PARTITIONS)
        self.arrivals.start()

    def is_working(self) -> bool:
        return len(self.arrivals.times) == PARTITIONS

    def look(self) -> None:
        assert self._job.process.poll() is None, f"the job ended:\n{self._job.output()[-4000:]}"

    def stop(self) -> None:
        """Waits until everything is counted."""
        self._feed.stop()
        deadline = time.monotonic() + END_S
        wanted = sum(self._feed.sent.values())
        self.counts: dict[str, list[int]] = defaultdict(list)
        reader = consumer(self._cluster, "read_committed")
        reader.assign(self.arrivals.partitions())
        found = 0
        while found < wanted and time.monotonic() < deadline:
            found += self._take(reader, 1.0)
        self._job.leave()
        self.arrivals.stop()
        quiet = time.monotonic() + 3.0
        while time.monotonic() < quiet:  # what comes now was counted twice
            self._take(reader, 0.5)
        reader.close()

    def _take(self, reader: Consumer, seconds: float) -> int:
        found = 0
        for message in reader.consume(1000, seconds):
            if message.error() is None:
                self.counts[message.key().decode()].append(int(message.value()))
                found += 1
        return found

    def check(self, findings: Findings) -> dict[str, int]:
        for key, sent in self._feed.sent.items():
            check_counts(findings, f"counts of {key}", self.counts[key], sent)
        return {"counted": sum(map(len, self.counts.values()))}

    def kill(self) -> None:
        self._job.kill()
