"""docs/migration.md, "Rolling replacement": the commands of the page, between two hosts.

Each host has a broker of Apache Kafka 3.9.1 with the settings of the `server.properties` that Kafka
ships: `listeners` is commented out, so each broker listens on every address and registers the name
of its host. A loopback address in its place would pass on one machine, and is an outage on two.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.apache_kafka import JavaProcess, java_command
from tests.doubles.eventually import eventually
from tests.doubles.two_hosts import REPOSITORY, Host, two_hosts

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

PAGE = (REPOSITORY / "docs" / "migration.md").read_text(encoding="utf-8")

#: What Kafka 3.9.1's config/server.properties sets, with what an operator of two hosts changes.
SHIPPED = """\
broker.id={broker_id}
#listeners=PLAINTEXT://:9092
#advertised.listeners=PLAINTEXT://your.host.name:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=kafka-1:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
#: Kafka's config/zookeeper.properties.
ZOOKEEPER = """\
dataDir=/tmp/zookeeper
clientPort=2181
maxClientCnxns=0
admin.enableServer=false
"""
START = "ottla start server.properties"


class Operator:
    """Does what the page says on the two hosts."""

    def __init__(self, hosts: tuple[Host, Host], directory: Path) -> None:
        self.hosts = hosts
        self.processes: list[JavaProcess] = []
        self.commands: set[str] = set()
        self._directory = directory

    def launch(self, host: Host, command: list[str], ready: str) -> JavaProcess:
        """Start a server on a host; return when its output has the pattern `ready`."""
        output = self._directory / f"{host.name}-{len(self.processes)}.log"
        process = JavaProcess([*host.prefix, *command], output)
        self.processes.append(process)
        process.wait_for(ready)
        return process

    def start_kafka(self, host: Host) -> JavaProcess:
        command = java_command("kafka.Kafka", "server.properties")
        return self.launch(host, command, r"\[KafkaServer id=\d+\] started")

    def start_ottla(self, host: Host) -> JavaProcess:
        self.commands.add(START)
        return self.launch(host, _ottla(START), "is ready")

    def page(self, command: str) -> str:
        """A command of the page, from the second host; what it prints."""
        self.commands.add(command)
        words = _ottla(command)
        if "-b" not in command.split():
            words += ["-b", "kafka-1:9092"]
        done = self.hosts[1].run(*words)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def wait_for_replicas(self) -> None:
        """Step 4: until no partition is under-replicated, which the exit code says."""
        command = "ottla partitions under-replicated"
        self.commands.add(command)
        eventually(
            lambda: self.hosts[1].run(*_ottla(command), "-b", "kafka-1:9092").returncode == 0
        )

    def client(self, command: str, text_input: str | None = None) -> str:
        """A client on the second host, with both brokers as bootstrap servers."""
        both = ["-b", "kafka-1:9092,kafka-2:9092"]
        done = self.hosts[1].run(*_ottla(command), *both, text_input=text_input)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def registered(self) -> set[str]:
        """The addresses that both brokers return, from the other host."""
        return set(re.findall(r"kafka-\d\S*:9092", self.client("ottla cluster info")))


def _ottla(command: str) -> list[str]:
    program, *arguments = command.split()
    assert program == "ottla"
    return [sys.executable, "-m", "ottla.cli.main", *arguments]


@contextmanager
def kafka_on_two_hosts(directory: Path) -> Iterator[tuple[Operator, list[JavaProcess]]]:
    with two_hosts(directory) as hosts:
        operator = Operator(hosts, directory)
        try:
            for broker_id, host in enumerate(hosts):
                (host.tmp / "server.properties").write_text(SHIPPED.format(broker_id=broker_id))
            (hosts[0].tmp / "zookeeper.properties").write_text(ZOOKEEPER)
            zookeeper = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            command = java_command(zookeeper, "zookeeper.properties")
            operator.launch(hosts[0], command, r"PrepRequestProcessor \(sid:0\) started")
            yield operator, [operator.start_kafka(host) for host in hosts]
        finally:
            for process in reversed(operator.processes):
                process.kill()


def test_rolling_replacement_and_rollback(tmp_path: Path) -> None:
    with kafka_on_two_hosts(tmp_path) as (operator, brokers):
        first, second = operator.hosts
        operator.client("ottla topics create orders --partitions 4 --replication-factor 2")
        written = [f"{n}" for n in range(100)]
        operator.client("ottla produce orders --acks all", "\n".join(written) + "\n")
        addresses = operator.registered()
        assert addresses == {f"{host.full_name}:9092" for host in operator.hosts}

        found = operator.page("ottla migrate -b kafka-1:9092")
        assert found.count("is on ZooKeeper and speaks inter-broker protocol 3.9") == 2
        operator.page("ottla partitions under-replicated")
        operator.page("ottla cluster info")  # the broker of the first host is the controller
        for host, kafka in ((second, brokers[1]), (first, brokers[0])):
            kafka.stop()
            ottla = operator.start_ottla(host)
            assert "reachable from every network of this machine" in ottla.output()
            operator.wait_for_replicas()
            assert operator.registered() == addresses
            assert "PROBLEM" not in operator.page("ottla doctor")
            operator.page("ottla partitions elect-leaders")
            more = [f"{host.name} {n}" for n in range(100)]
            operator.client("ottla produce orders --acks all", "\n".join(more) + "\n")
            written += more
            assert sorted(operator.client("ottla consume orders").splitlines()) == sorted(written)
        assert operator.commands == _commands_of_the_page()

        # "Rollback": the same steps in the other direction.
        operator.processes[-1].stop()
        operator.start_kafka(first)
        operator.wait_for_replicas()
        assert operator.registered() == addresses
        assert sorted(operator.client("ottla consume orders").splitlines()) == sorted(written)


def _commands_of_the_page() -> set[str]:
    """The commands of the prerequisites and of the rolling replacement."""
    steps, _, _ = PAGE.partition("## Migration to other machines")
    return set(re.findall(r"`(ottla [^`]+)`", steps)) - {"ottla[keystores]"}
