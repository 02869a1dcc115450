"""A broker whose place in the cluster is taken leads nothing, whatever is on its way to it."""

from __future__ import annotations

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


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    server = BrokerServer(BrokerConfig(settings), lambda: None)
    await server.start()
    await server.parts.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=5_000)
    yield server.parts
    await server.stop()


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
