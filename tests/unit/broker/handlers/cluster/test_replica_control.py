"""Requests of the controller, from the decoded request to the applied state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.handlers.cluster import replica_control
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.controller.tree.store import ConnectionLost
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas, codes


class TopicConfigs:
    """Fails a given number of times; `meanwhile` is called by each read."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.reads: list[set[str]] = []
        self.broker_epoch: BrokerEpoch | None = None

    async def load_topics(self, topics: Iterable[str]) -> None:
        self.reads.append(set(topics))
        if self.broker_epoch is not None:
            self.broker_epoch.value += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("", "ZooKeeper gave no response")


class Scene:
    def __init__(self, failures: int = 0) -> None:
        self.replicas = Replicas()
        self.configs = TopicConfigs(failures)
        self.broker_epoch = BrokerEpoch(7)
        self.control = ReplicaControl(
            self.replicas.leader_and_isr,
            self.replicas.metadata,
            cast(Any, self.configs),
            self.broker_epoch,
            lambda deleted: None,
        )

    def request(self) -> LeaderAndIsrRequest:
        state = LeaderAndIsrPartitionState(
            partition_index=0, controller_epoch=1, leader=1, isr=[1], replicas=[1]
        )
        topic = LeaderAndIsrTopicState(TOPIC, TOPIC_ID, [state])
        return LeaderAndIsrRequest(
            controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[topic]
        )


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_control, "_READ_BACKOFF_SECONDS", 0)


async def test_the_read_of_topic_configurations_is_retried() -> None:
    scene = Scene(failures=3)
    response = await scene.control.leader_and_isr(scene.request(), 7)
    assert codes(response) == [0]
    assert scene.configs.reads == [{TOPIC}] * 4
    assert scene.replicas.partition().is_leader


async def test_a_read_that_keeps_failing_fails_the_request() -> None:
    scene = Scene(failures=1_000)
    with pytest.raises(ConnectionLost):
        await scene.control.leader_and_isr(scene.request(), 7)
    assert scene.replicas.manager.partitions == {}


async def test_a_request_of_an_earlier_registration_is_stale_also_after_the_read() -> None:
    scene = Scene()
    scene.configs.broker_epoch = scene.broker_epoch
    response = await scene.control.leader_and_isr(scene.request(), 7)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert scene.replicas.manager.partitions == {}
