"""Topics that were deleted without notice to this broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.deleted_topics import DeletedTopicCheck
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import Replicas

IDS = {name: name[0].encode() * 16 for name in ("kept", "gone", "new", "again")}
LATER_ID = b"2" * 16


class Scene:
    def __init__(self) -> None:
        self.replicas = Replicas()
        self.metadata = self.replicas.metadata
        self.store = EmbeddedStore()
        self.broker_epoch = BrokerEpoch(7)
        self.deleted: list[TopicPartition] = []
        self.control = ReplicaControl(
            self.replicas.leader_and_isr,
            self.metadata,
            cast(Any, None),
            self.broker_epoch,
            self.deleted.extend,
        )
        self.check = DeletedTopicCheck(
            self.metadata, self.store, self.broker_epoch, self.control.forget_topics
        )

    async def start(self, *topics: str) -> None:
        """All are in the metadata; those of the tree are up to the test."""
        await self.store.connect()
        await self.store.create(znodes.TOPICS, make_parents=True)
        for topic in topics:
            await self.create(topic)

    async def create(self, topic: str, epoch: int = 1, topic_id: bytes | None = None) -> None:
        if await self.store.exists(znodes.topic_path(topic)) is None:
            await self.store.create(znodes.topic_path(topic))
        self.publish(topic, epoch, topic_id)

    def publish(self, topic: str, epoch: int = 1, topic_id: bytes | None = None) -> None:
        states = [
            UpdateMetadataPartitionState(partition_index=index, leader=2, replicas=[2], isr=[2])
            for index in range(2)
        ]
        publish(
            self.metadata,
            UpdateMetadataRequest(
                controller_id=2,
                controller_epoch=epoch,
                topic_states=[UpdateMetadataTopicState(topic, topic_id or IDS[topic], states)],
                live_brokers=[UpdateMetadataBroker(id=2)],
            ),
        )

    @property
    def topics(self) -> set[str]:
        return set(self.metadata.snapshot.topics)


CHANGES = {
    "a registration": lambda scene: scene.broker_epoch.registered(8),
    "another controller": lambda scene: scene.publish("kept", 2),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_topics_that_are_gone_are_removed_after(what: str) -> None:
    scene = Scene()
    await scene.start("kept", "gone")
    for _ in range(3):
        await scene.check.look()
    await scene.store.delete(znodes.topic_path("gone"))
    for _ in range(3):
        await scene.check.look()
    assert scene.topics == {"kept", "gone"}, "usually the controller says so"
    CHANGES[what](scene)
    before = scene.metadata.snapshot
    await scene.check.look()
    assert scene.topics == {"kept", "gone"}
    scene.publish("new", before.controller_epoch)  # the server of ZooKeeper has not heard of it
    await scene.check.look()
    assert scene.topics == {"kept", "new"}
    after = scene.metadata.snapshot
    assert (after.brokers, after.controller_epoch) == (before.brokers, before.controller_epoch)
    assert scene.deleted == [TopicPartition("gone", 0), TopicPartition("gone", 1)]
    await scene.store.close()


async def test_a_topic_that_is_created_again_meanwhile_stays() -> None:
    scene = Scene()
    await scene.start("again")
    await scene.store.delete(znodes.topic_path("again"))
    await scene.check.look()
    scene.publish("again", topic_id=LATER_ID)
    await scene.check.look()
    assert scene.metadata.snapshot.topic_id("again") == LATER_ID
    assert not scene.deleted
    await scene.store.close()


async def test_it_looks_again_when_zookeeper_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    await scene.start("gone")
    await scene.store.delete(znodes.topic_path("gone"))

    async def lost(path: str) -> list[str]:
        raise ConnectionLost(path, "ZooKeeper is away")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "children", lost)
        for _ in range(2):
            await scene.check.look()
    assert scene.topics == {"gone"}
    await scene.check.look()
    assert scene.topics == set()
    await scene.store.close()
