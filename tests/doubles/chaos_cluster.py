"""Three brokers and a ZooKeeper whose every cable goes through proxies, and what befalls them."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.broker_process import BrokerProcess
from tests.doubles.chaos_network import ChaosNetwork
from tests.doubles.faulty_disk import BROKEN, FaultyBrokerProcess
from tests.doubles.kafka_process import KafkaBrokerProcess
from tests.doubles.zookeeper_process import ZooKeeperProcess, start_zookeeper

BROKER_IDS = (1, 2, 3)
SESSION_TIMEOUT_MS = 3_000
# Below the ports that the kernel gives to outgoing connections: one that is free while its broker
# is down must still be free when it comes back.
_PORTS = range(20_000, 32_000)

SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "10",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
_SETTINGS = {
    **SETTINGS,
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "inter.broker.protocol.version": "3.9",
}


class ChaosCluster:
    """What can be done to the brokers; `victims` are those that cannot do their work now."""

    def __init__(
        self,
        directory: Path,
        zookeeper: ZooKeeperProcess,
        network: ChaosNetwork,
        kafka_ids: Collection[int] = (),
    ) -> None:
        """`kafka_ids` are brokers of Apache Kafka, whose disks do not fail."""
        self.zookeeper = zookeeper
        self.network = network
        self.brokers: dict[int, BrokerProcess] = {}
        self.victims: set[int] = set()
        self._paused: set[int] = set()
        ports = _free_ports(4 * len(BROKER_IDS))
        for broker_id in BROKER_IDS:
            client_port, broker_port, shown_port, tree_port = (next(ports) for _ in range(4))
            name = _name(broker_id)
            network.listen(shown_port, name, broker_port)
            network.listen(tree_port, "zookeeper", zookeeper.port, name)
            listeners = "CLIENTS://127.0.0.1:{},BROKERS://127.0.0.1:{}"
            process = KafkaBrokerProcess if broker_id in kafka_ids else FaultyBrokerProcess
            self.brokers[broker_id] = process(
                directory / name,
                {
                    **_SETTINGS,
                    "broker.id": str(broker_id),
                    "zookeeper.connect": f"127.0.0.1:{tree_port}",
                    "listeners": listeners.format(client_port, broker_port),
                    "advertised.listeners": listeners.format(client_port, shown_port),
                },
            )
            self.brokers[broker_id].port = client_port

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def kill(self, victim: int) -> None:
        """kill -9."""
        self.victims.add(victim)
        self.brokers[victim].kill()

    def pause(self, victim: int) -> None:
        """The process stands still and does not know it."""
        self.victims.add(victim)
        os.kill(self.brokers[victim].pid, signal.SIGSTOP)
        self._paused.add(victim)

    def part_from_zookeeper(self, victim: int, silently: bool) -> None:
        self.victims.add(victim)
        self.network.cut([(_name(victim), "zookeeper")], silently)

    def part_from_brokers(self, victim: int, silently: bool) -> None:
        """It stays registered, and so the leader of what it leads: no victim."""
        name = _name(victim)
        others = [_name(broker_id) for broker_id in BROKER_IDS if broker_id != victim]
        ways = [(name, other) for other in others] + [(other, name) for other in others]
        self.network.cut(ways, silently)

    def isolate(self, victim: int, silently: bool) -> None:
        self.part_from_zookeeper(victim, silently)
        self.part_from_brokers(victim, silently)

    def fail_disk(self, victim: int, fault: str) -> None:
        """One of `faulty_disk.FAULTS`."""
        self.victims.add(victim)
        broker = self.brokers[victim]
        assert isinstance(broker, FaultyBrokerProcess), "the disks of Kafka's brokers do not fail"
        broker.faults.begin(fault)

    def heal(self) -> None:
        """Everything runs and reaches everything."""
        self.network.heal()
        for broker in self.brokers.values():
            ended = isinstance(broker, FaultyBrokerProcess) and BROKEN in broker.faults.end()
            # A broken disk stays offline until the broker starts again; without another, it ends.
            if broker.is_running and (ended or broker.has_ended()):
                broker.kill()
        for victim in self._paused:
            os.kill(self.brokers[victim].pid, signal.SIGCONT)
        self._paused.clear()
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.start()
        self.victims.clear()

    def logs_are_identical(self, topic: str, partitions: int) -> bool:
        """Whether all replicas hold the same bytes, whatever files they are in."""
        return all(
            len({self._bytes(broker, f"{topic}-{index}") for broker in self.brokers.values()}) == 1
            for index in range(partitions)
        )

    def _bytes(self, broker: BrokerProcess, name: str) -> bytes:
        files = sorted((broker.data_directory / name).glob("*.log"))
        return b"".join(file.read_bytes() for file in files)

    def replica(self, topic: str, index: int) -> Path:
        """The directory of a replica on the first broker."""
        return self.brokers[BROKER_IDS[0]].data_directory / f"{topic}-{index}"

    def story(self) -> str:
        """The ends of all logs, for diagnosis."""
        return "\n".join(
            f"--- {broker_id}\n{broker.log()[-6000:]}" for broker_id, broker in self.brokers.items()
        )


def _name(broker_id: int) -> str:
    return f"broker-{broker_id}"


def _free_ports(count: int) -> Iterator[int]:
    found = 0
    for port in random.Random(time.time_ns()).sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
        found += 1
        if found == count:
            return


@contextmanager
def start_chaos_cluster(directory: Path, kafka_ids: Collection[int] = ()) -> Iterator[ChaosCluster]:
    """All brokers started; everything ended when the block ends."""
    network = ChaosNetwork()
    try:
        with start_zookeeper(directory) as zookeeper:
            cluster = ChaosCluster(directory, zookeeper, network, kafka_ids)
            try:
                for broker in cluster.brokers.values():
                    broker.start()
                yield cluster
            finally:
                for broker in cluster.brokers.values():
                    if broker.is_running:
                        broker.kill()
    finally:
        network.close()
