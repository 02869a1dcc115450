"""A KRaft controller takes over the znodes of a cluster in which there is a broker of Ottla."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.cli.zookeeper_server import free_port
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode
from tests.doubles.apache_kafka import (
    JavaProcess,
    java_command,
    start_kafka,
    start_zookeeper,
)
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import start_ottla_zookeeper
from tests.integration.test_woken_twin import produce_code, status_of

pytestmark = pytest.mark.zookeeper

FAULT = "kraft-migration"
TAKEN_OVER = "The KRaft controller 3000 has taken over the cluster in epoch"
KAFKA_ID, OTTLA_ID = 1, 2
CONTROLLER_ID = 3000


def kraft_faults(http: int) -> list[str]:
    status = json.loads(status_of(http, "/statusz")[1])
    return [each["problem"] for each in status["faults"] if each["name"] == FAULT]


def assert_start_is_refused(directory: Path, zookeeper: str) -> None:
    """With the exit code and a sentence that names the controller; nothing is written."""
    with (
        pytest.raises(AssertionError, match="the broker ended with 22") as failed,
        start_broker(directory, broker_id=9, zookeeper_connect=zookeeper),
    ):
        pass
    assert TAKEN_OVER in str(failed.value)
    assert "zookeeper.metadata.migration.enable=true instead" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def assert_stop_asked_nobody(broker: BrokerProcess) -> None:
    """A KRaft controller does not know this broker: the retries would take 10 s."""
    log = broker.log()
    assert f"Proceeding to shut down without controlled shutdown: {TAKEN_OVER}" in log
    assert "Failed to send ControlledShutdown" not in log


def take_over(client: KazooClient, epoch: int) -> None:
    """What a KRaft controller writes; `epoch` is its own."""
    before = int(client.get(znodes.CONTROLLER_EPOCH)[0])
    taken = {"version": 2, "brokerid": 3000, "timestamp": "0", "kraftControllerEpoch": epoch}
    change = client.transaction()
    change.set_data(znodes.CONTROLLER_EPOCH, b"%d" % (before + 1))
    change.delete(znodes.CONTROLLER)
    change.create(znodes.CONTROLLER, json.dumps(taken).encode())
    change.commit()


@contextmanager
def client_of(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_broker_leaves_service_until_the_operator_goes_back(tmp_path: Path) -> None:
    http = free_port()
    with (
        start_ottla_zookeeper(tmp_path, tick_time_ms=200) as zookeeper,
        client_of(zookeeper.connect) as client,
        start_broker(
            tmp_path,
            broker_id=1,
            zookeeper_connect=zookeeper.connect,
            ottla_metrics_address=f"127.0.0.1:{http}",
        ) as broker,
    ):
        CommandLine(broker.bootstrap).done("topics", "create", "t")
        assert produce_code(broker.port) == ErrorCode.NONE
        epoch = int(client.get(znodes.CONTROLLER_EPOCH)[0])
        take_over(client, 5)
        taken = client.get(znodes.CONTROLLER)[0]
        eventually(lambda: status_of(http, "/readyz")[0] == 503, broker.log)
        assert produce_code(broker.port) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        (problem,) = kraft_faults(http)
        assert problem.startswith(f"{TAKEN_OVER} 5")
        assert_start_is_refused(tmp_path / "late", zookeeper.connect)
        assert client.get(znodes.CONTROLLER)[0] == taken
        client.delete(znodes.CONTROLLER)
        eventually(lambda: status_of(http, "/readyz")[0] == 200, broker.log)
        eventually(lambda: produce_code(broker.port) == ErrorCode.NONE, broker.log)
        assert int(client.get(znodes.CONTROLLER_EPOCH)[0]) == epoch + 2
        take_over(client, 6)
        eventually(lambda: status_of(http, "/readyz")[0] == 503, broker.log)
        assert broker.stop() == 0
        assert_stop_asked_nobody(broker)


@pytest.mark.kafka
def test_migration_of_kafka(tmp_path: Path) -> None:
    """Kafka's controller waits while the broker is registered; then it takes over for good."""
    port = free_port()
    quorum = {
        "controller_quorum_voters": f"{CONTROLLER_ID}@127.0.0.1:{port}",
        "controller_listener_names": "CONTROLLER",
        "listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "zookeeper_metadata_migration_enable": True,
    }
    http = free_port()
    with (
        start_zookeeper(tmp_path) as zookeeper,
        client_of(zookeeper) as client,
        start_broker(
            tmp_path,
            broker_id=OTTLA_ID,
            zookeeper_connect=zookeeper,
            zookeeper_session_timeout_ms=3_000,
            offsets_topic_replication_factor=1,
            ottla_metrics_address=f"127.0.0.1:{http}",
        ) as ottla,
        _controller(tmp_path, port, zookeeper, quorum, ottla) as controller,
        start_kafka(
            tmp_path / "kafka",
            zookeeper=zookeeper,
            broker_id=KAFKA_ID,
            listeners=f"PLAINTEXT://127.0.0.1:{free_port()}",
            inter_broker_protocol_version="3.9",
            **quorum,
        ) as kafka,
    ):
        eventually(lambda: len(client.get_children(znodes.BROKER_IDS)) == 2)
        CommandLine(ottla.bootstrap).done("topics", "create", "t", "--replica-assignment", "1")
        kafka_port = int(kafka.bootstrap.rpartition(":")[2])
        eventually(lambda: produce_code(kafka_port) == ErrorCode.NONE)
        controller.wait_for(rf"Still waiting for ZK brokers \[{OTTLA_ID}\] to register with KRaft")
        assert znodes.decode_kraft_epoch(client.get(znodes.CONTROLLER)[0]) == -1
        assert kraft_faults(http) == []

        # Its session ends without it.
        ottla.send_signal(signal.SIGSTOP)
        controller.wait_for("Completed migration of metadata from ZooKeeper to KRaft")
        data, stat = client.get(znodes.CONTROLLER)
        assert znodes.decode_controller(data) == CONTROLLER_ID
        assert stat.ephemeralOwner == 0
        ottla.send_signal(signal.SIGCONT)
        eventually(lambda: status_of(http, "/readyz")[0] == 503, ottla.log)
        (problem,) = kraft_faults(http)
        assert problem.startswith(TAKEN_OVER)
        assert_start_is_refused(tmp_path / "late", zookeeper)
        assert client.get(znodes.CONTROLLER)[0] == data
        assert produce_code(kafka_port) == ErrorCode.NONE
        assert ottla.stop() == 0
        assert_stop_asked_nobody(ottla)
        controller.stop()
        assert_start_is_refused(tmp_path / "later", zookeeper)
        assert produce_code(kafka_port) == ErrorCode.NONE


@contextmanager
def _controller(
    directory: Path,
    port: int,
    zookeeper: str,
    quorum: dict[str, object],
    ottla: BrokerProcess,
) -> Iterator[JavaProcess]:
    """A KRaft controller of Kafka 3.9.1 that migrates."""
    values = {
        "process_roles": "controller",
        "node_id": CONTROLLER_ID,
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "log_dirs": directory / "controller",
        "zookeeper_connect": zookeeper,
        **quorum,
    }
    file = directory / "controller.properties"
    file.write_text(
        "".join(
            f"{name.replace('_', '.')}={str(value).lower() if value is True else value}\n"
            for name, value in values.items()
        )
    )
    cluster_id = CommandLine(ottla.bootstrap).done("cluster", "info", "--json").value["cluster_id"]
    command = java_command("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file))
    subprocess.run(command, check=True, capture_output=True)
    process = JavaProcess(java_command("kafka.Kafka", str(file)), directory / "controller.log")
    try:
        yield process
    finally:
        process.stop()
