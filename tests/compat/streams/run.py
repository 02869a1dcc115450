"""A Kafka Streams job with exactly_once_v2, its brokers and itself killed again and again, counted.

    python -m tests.compat.streams.run [--brokers 3] [--kills 6] [--version 3.9.1]

The job (CountJob.java, compiled here; that needs a JDK and Maven) counts records by key and writes
every new count. While records keep coming, brokers are killed with SIGKILL in turn, and the job
itself every third time. In the end the output, read with read_committed, has to hold for every key
the numbers from 1 to the number of its records, each once and in order.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles import apache_kafka
from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.kafka_clients import JsonLines, java_command
from tests.doubles.maven import fetch_jars

SOURCE = Path(__file__).with_name("CountJob.java")
PARTITIONS = 4
KEYS = 20
BATCH = 1_000  # records between two kills
RECORDS_PER_S = 400  # slow enough for kills to fall into the middle of transactions
DEADLINE_S = 300.0


def compile_job(version: str) -> Path:
    """A directory with the jars of Kafka Streams and the compiled job."""
    library = apache_kafka.REPOSITORY / ".cache" / f"kafka-streams-{version}" / "lib"
    if not library.exists():
        wanted = [("org.apache.kafka", "kafka-streams", version, "")]
        if not version.startswith("3."):
            wanted.append(("org.slf4j", "slf4j-simple", "1.7.36", ""))
        fetch_jars(library, wanted)
    subprocess.run(
        ["javac", "-cp", f"{library}/*", "-d", str(library.parent / "job"), str(SOURCE)], check=True
    )
    return library


class Job:
    """The running job; can be killed and started again."""

    def __init__(self, library: Path, bootstrap: str, directory: Path, replicas: int) -> None:
        self._directory = directory
        command = java_command(library, "CountJob", bootstrap, str(directory), str(replicas))
        place = command.index("-cp") + 1
        command[place] = f"{library.parent / 'job'}:{command[place]}"
        self._command = [word.replace("-Xmx96m", "-Xmx256m") for word in command]
        self._starts = 0
        self._process: JsonLines | None = None

    def start(self) -> None:
        self._starts += 1
        output = self._directory / f"job-{self._starts}.log"
        self._process = JsonLines(self._command, output)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def story(self) -> str:
        return self._process.output()[-6000:] if self._process is not None else ""


class Output:
    """What has been committed to the topic "out", read as it comes."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "checker",
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,  # brokers will be away
            }
        )
        self._consumer.assign([TopicPartition("out", index, 0) for index in range(PARTITIONS)])
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.total = 0

    def read_until(self, total: int, story: Job) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.total < total:
            assert time.monotonic() < deadline, f"{self.total} of {total}\n{story.story()}"
            self._take(1.0)

    def read_rest(self, patience_s: float) -> None:
        """Whatever else comes: there should be nothing."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            self._take(0.5)

    def _take(self, timeout_s: float) -> None:
        for message in self._consumer.consume(500, timeout_s):
            if message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                self.counts[key.decode()].append(int(value))
                self.total += 1

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def brokers(directory: Path, count: int) -> Iterator[tuple[str, list[BrokerProcess]]]:
    factor = min(3, count)
    settings: dict[str, object] = {
        "offsets_topic_replication_factor": factor,
        "transaction_state_log_replication_factor": factor,
        "transaction_state_log_min_isr": min(2, count),
        "transaction_state_log_num_partitions": 5,
        "min_insync_replicas": min(2, count),
        "default_replication_factor": factor,
    }
    with ExitStack() as stack:
        if count == 1:
            alone = stack.enter_context(start_broker(directory, **settings))
            yield alone.bootstrap, [alone]
        else:
            cluster: BrokerCluster = stack.enter_context(
                start_cluster(directory, count, **settings)
            )
            yield cluster.bootstrap, list(cluster.brokers.values())


def make_topics(bootstrap: str, factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, factor) for name in ("in", "out")]
    for done in admin.create_topics(topics).values():
        done.result(60)


class Feed(threading.Thread):
    """Writes records at a steady rate, each exactly once."""

    def __init__(self, bootstrap: str, count: int) -> None:
        super().__init__(daemon=True)
        self._count = count
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self.unsent = count

    def run(self) -> None:
        for number in range(self._count):
            self._producer.produce("in", b"x", key=b"key-%d" % (number % KEYS))
            self._producer.poll(0)
            time.sleep(1 / RECORDS_PER_S)
        self.unsent = self._producer.flush(DEADLINE_S)


def run(directory: Path, version: str, broker_count: int, kills: int) -> None:
    library = compile_job(version)
    with brokers(directory, broker_count) as (bootstrap, processes):
        make_topics(bootstrap, min(3, broker_count))
        sent = (kills + 1) * BATCH
        feed = Feed(bootstrap, sent)
        job = Job(library, bootstrap, directory, min(3, broker_count))
        output = Output(bootstrap)
        try:
            begun = time.monotonic()
            job.start()
            feed.start()
            for number in range(kills):
                output.read_until((number + 1) * BATCH - BATCH // 2, job)
                victim = processes[number % len(processes)]
                if number % 3 == 1:
                    job.kill()  # its open transaction is left to the coordinator
                    job.start()
                victim.kill()
                victim.start()
                print(f"kill {number + 1} of {kills}: {output.total} of {sent} counted", flush=True)
            output.read_until(sent, job)
            feed.join(DEADLINE_S)
            assert feed.unsent == 0
            taken = time.monotonic() - begun
            output.read_rest(5.0)
        finally:
            job.kill()
            output.close()
        check(output.counts, sent)
        everything = Output(bootstrap, "read_uncommitted")
        everything.read_rest(5.0)
        everything.close()
        print(
            f"Kafka Streams {version}, {broker_count} broker(s): {sent} records counted exactly "
            f"once through {kills} kills in {taken:.0f} s; "
            f"{everything.total - output.total} counts were aborted"
        )


def check(counts: dict[str, list[int]], sent: int) -> None:
    expected = {f"key-{n}": list(range(1, len(range(n, sent, KEYS)) + 1)) for n in range(KEYS)}
    wrong = {key: counts.get(key) for key in expected if counts.get(key) != expected[key]}
    assert not wrong, f"not exact: {wrong}"
    assert counts.keys() == expected.keys()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--version", default=apache_kafka.KAFKA_VERSION)
    arguments = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        print(f"not run: the Streams job needs {', '.join(missing)}")
        return
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), arguments.version, arguments.brokers, arguments.kills)


if __name__ == "__main__":
    main()
