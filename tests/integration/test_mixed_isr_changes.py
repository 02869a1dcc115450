"""ISRs that change under load where Kafka 3.9.1 and our brokers share a cluster.

Brokers that stand still leave the ISRs by AlterPartition and come back; brokers that are killed
return. The controller is killed, too, so either side is the controller for a part of each test.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from ottla.protocol.client.cluster import Address
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.doubles.acknowledged_records import TOPIC, AcknowledgedRecords, identical_logs
from tests.doubles.apache_kafka import start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.kafka_process import KafkaBrokerProcess

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

KAFKA_ID = 1
SETTINGS = {
    "zookeeper.session.timeout.ms": "12000",
    "inter.broker.protocol.version": "3.9",
    "offsets.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "2000",
    "auto.leader.rebalance.enable": "false",
}


def member(directory: Path, zookeeper: str, broker_id: int) -> BrokerProcess:
    kind = KafkaBrokerProcess if broker_id == KAFKA_ID else BrokerProcess
    port = free_port()
    settings = {
        "broker.id": str(broker_id),
        "zookeeper.connect": zookeeper,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        **SETTINGS,
    }
    broker = kind(directory / f"broker-{broker_id}", settings)
    broker.port = port
    return broker


@contextmanager
def cluster(directory: Path, order: tuple[int, ...]) -> Iterator[dict[int, BrokerProcess]]:
    """The first one is the controller."""
    with start_zookeeper(directory / "zookeeper") as zookeeper:
        brokers = {each: member(directory, zookeeper, each) for each in order}
        try:
            for broker in brokers.values():
                broker.start()
            yield brokers
        finally:
            for broker in brokers.values():
                if broker.is_running:
                    broker.kill()


class Load:
    """Produces until it is stopped; an error fails `stop`."""

    def __init__(self, records: AcknowledgedRecords) -> None:
        self._records = records
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.02):
                self._records.produce(50)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


Row = tuple[int, int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def metadata_of(broker: BrokerProcess) -> tuple[list[int], int, list[Row]]:
    """The live brokers, the controller and the partitions of the topic, as one broker sees them."""
    connection = BlockingConnection(Address("127.0.0.1", broker.port), client_id="test")
    deadline = monotonic_ms() + 30_000
    try:
        connection.connect(deadline)
        request = MetadataRequest([MetadataRequestTopic(name=TOPIC)])
        response = connection.request(request, deadline)
    finally:
        connection.close()
    (topic,) = response.topics
    rows = [
        (
            row.partition_index,
            row.leader_id,
            row.leader_epoch,
            tuple(sorted(row.isr_nodes)),
            tuple(row.replica_nodes),
            tuple(sorted(row.offline_replicas)),
        )
        for row in topic.partitions
    ]
    return sorted(each.node_id for each in response.brokers), response.controller_id, sorted(rows)


def in_sync(brokers: dict[int, BrokerProcess], away: int | None = None) -> bool:
    """Whether all running brokers see the same: all in the ISRs but the one that is away."""
    seen = [metadata_of(broker) for each, broker in brokers.items() if each != away]
    _, _, rows = seen[0]
    return all(each == seen[0] for each in seen) and all(
        row[3] == tuple(sorted(each for each in row[4] if each != away))
        and row[1] != away
        and row[2] >= 0
        for row in rows
    )


@pytest.mark.parametrize("order", [(1, 2, 3), (2, 3, 1)], ids=["kafka leads", "ottla leads"])
def test_brokers_stand_still_and_return_under_load(tmp_path: Path, order: tuple[int, ...]) -> None:
    with cluster(tmp_path, order) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        records = AcknowledgedRecords(bootstrap)
        records.create_topic()
        records.produce(50)
        assert metadata_of(brokers[2])[1] == order[0]
        load = Load(records)
        try:
            for still in reversed(order[1:]):
                # Shorter than its session: the leaders alone see that it is behind.
                brokers[still].send_signal(signal.SIGSTOP)
                try:
                    others = {each: broker for each, broker in brokers.items() if each != still}
                    eventually(
                        lambda others=others, still=still: any(  # type: ignore[misc]
                            still not in row[3] and row[1] != still
                            for row in metadata_of(next(iter(others.values())))[2]
                        ),
                        "a broker that stands still is in all ISRs",
                    )
                finally:
                    brokers[still].send_signal(signal.SIGCONT)
                eventually(lambda: in_sync(brokers), "a broker that went on is not in all ISRs")
            for away in (*reversed(order[1:]), order[0]):
                brokers[away].kill()
                eventually(
                    lambda away=away: in_sync(brokers, away),  # type: ignore[misc]
                    "the others do not agree after a broker was killed",
                )
                brokers[away].start()
                eventually(lambda: in_sync(brokers), "a killed broker is not back in all ISRs")
        finally:
            load.stop()
        assert metadata_of(brokers[2])[1] != order[0], "the role of the controller did not move"
        records.assert_nothing_lost_or_doubled()
        directories = [broker.data_directory for broker in brokers.values()]
        eventually(lambda: identical_logs(directories), "the replicas differ")
        for each, broker in brokers.items():
            if each != KAFKA_ID:
                assert "Traceback" not in broker.log()
