"""A broker whose place in the cluster is taken leads nothing, whatever is on its way to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server.broker import Broker
from ottla.broker.server.broker_server import BrokerServer
from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tests.doubles.eventually import eventually_async

WAYS: dict[str, tuple[Callable[[Broker], None], ErrorCode]] = {
    "another broker": (
        lambda broker: broker._id_taken("taken"),
        ErrorCode.STALE_BROKER_EPOCH,
    ),
    "a KRaft controller": (
        lambda broker: broker._kraft_took_over("taken", broker.controller.epoch + 1),
        ErrorCode.STALE_CONTROLLER_EPOCH,
    ),
}


def new_server(directory: Path) -> BrokerServer:
    settings = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    return BrokerServer(BrokerConfig(settings), lambda: None)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    server = new_server(tmp_path)
    await server.start()
    await server.parts.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=5_000)
    yield server.parts
    await server.stop()


async def test_a_stop_refuses_writes_after_a_standstill_while_clients_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server(tmp_path)
    await server.start()
    network, guard = server.parts.network_server, server.parts.standstill
    connected: list[int] = []
    end = guard.stop

    def note_connections() -> None:
        connected.append(len(network.connections))
        end()

    monkeypatch.setattr(guard, "stop", note_connections)
    with socket.create_connection(("127.0.0.1", server.ports["PLAINTEXT"])):
        await eventually_async(lambda: network.connections)
        await server.stop()
    assert connected == [0]


@pytest.mark.parametrize("way", WAYS)
async def test_state_of_the_controller_before_is_refused(broker: Broker, way: str) -> None:
    leave, expected = WAYS[way]
    ((key, partition),) = broker.replica_manager.partitions.items()
    assert partition.is_leader
    state = LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=broker.controller.epoch,
        leader=broker.broker_id,
        leader_epoch=partition.leader_epoch,
        isr=[broker.broker_id],
        partition_epoch=partition.partition_epoch,
        replicas=[broker.broker_id],
    )
    request = LeaderAndIsrRequest(
        controller_id=broker.broker_id,
        controller_epoch=broker.controller.epoch,
        broker_epoch=broker.broker_epoch.value,
        topic_states=[LeaderAndIsrTopicState(key.topic, partition.topic_id, [state])],
    )
    leave(broker)
    assert not partition.is_leader
    response = await broker.replica_control.leader_and_isr(request, 7)
    assert response.error_code == expected
    assert not partition.is_leader
