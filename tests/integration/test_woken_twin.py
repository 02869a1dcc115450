"""A machine is paused, another one takes its broker id, and the first one wakes up."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.cli.zookeeper_server import free_port
from ottla.controller.model import BrokerInfo, Endpoint
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.table import ApiKey
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire
from tests.doubles.zookeeper_process import start_ottla_zookeeper

pytestmark = pytest.mark.zookeeper

OTHER = BrokerInfo(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9),))


def status_of(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def produce_code(port: int) -> int:
    """The error code of a record with acks=1."""
    with Wire(f"127.0.0.1:{port}") as wire:
        return code_of(wire.ask(produce_request(), 9))


def produce_request() -> ProduceRequest:
    records = build_batch([(1, None, b"x", None)])
    data = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])


def code_of(response: Message) -> int:
    assert isinstance(response, ProduceResponse)
    return int(response.responses[0].partition_responses[0].error_code)


def take_id(broker: BrokerProcess, zookeeper: str) -> KazooClient:
    """Pause a broker until another one has its id; the client has the session of that one.

    A client wrote to the broker meanwhile: the request is read before the session is known to have
    ended, and must not be acknowledged."""
    other = KazooClient(zookeeper)
    other.start(60)
    path = znodes.broker_path(1)
    broker.send_signal(signal.SIGSTOP)
    eventually(lambda: other.exists(path) is None)
    other.create(path, znodes.encode_broker(OTHER, 0, instance="another"), ephemeral=True)
    with Wire(f"127.0.0.1:{broker.port}") as wire:
        wire.send(produce_request(), 9)
        broker.send_signal(signal.SIGCONT)
        assert code_of(wire.receive(ApiKey.PRODUCE, 9)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return other


def test_twin_that_wakes_up_leaves_service_until_the_other_is_gone(tmp_path: Path) -> None:
    http = free_port()
    with (
        start_ottla_zookeeper(tmp_path, tick_time_ms=200) as zookeeper,
        start_broker(
            tmp_path,
            broker_id=1,
            zookeeper_connect=zookeeper.connect,
            zookeeper_session_timeout_ms=1_000,
            ottla_metrics_address=f"127.0.0.1:{http}",
        ) as broker,
    ):
        CommandLine(broker.bootstrap).done("topics", "create", "t")
        assert produce_code(broker.port) == ErrorCode.NONE
        other = take_id(broker, zookeeper.connect)
        eventually(lambda: status_of(http, "/readyz")[0] == 503, broker.log, seconds=20.0)
        assert produce_code(broker.port) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        status = json.loads(status_of(http, "/statusz")[1])
        [fault] = [each for each in status["faults"] if each["name"] == "broker-id-taken"]
        assert "PLAINTEXT://127.0.0.1:9" in fault["problem"]
        other.stop()
        other.close()
        eventually(lambda: status_of(http, "/readyz")[0] == 200, seconds=60.0)
        eventually(lambda: produce_code(broker.port) == ErrorCode.NONE, seconds=60.0)
        other = take_id(broker, zookeeper.connect)
        eventually(lambda: status_of(http, "/readyz")[0] == 503, broker.log, seconds=20.0)
        assert broker.stop() == 0
        other.stop()
        other.close()
        assert (
            "without controlled shutdown: Broker id 1 is already registered "
            "by a broker at PLAINTEXT://127.0.0.1:9"
        ) in broker.log()
        assert "Failed to send ControlledShutdown" not in broker.log()
