"""Watches become events."""

from __future__ import annotations

from ottla.controller.events.events import (
    BrokerChange,
    BrokerModification,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModification,
    PartitionReassignment,
    PartitionReassignmentIsrChange,
    PreferredReplicaElection,
    TopicChange,
    TopicDeletion,
)
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.registration import create_persistent_paths
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import settle

T0 = TopicPartition("t", 0)


class Watched:
    def __init__(self) -> None:
        self.store = EmbeddedStore()
        self.events: list[Event] = []
        self.watches = ZkWatches(self.store, self.events.append)

    async def start(self) -> None:
        await self.store.connect()
        await create_persistent_paths(self.store)
        await self.watches.watch_general()

    async def kinds(self) -> list[type]:
        await settle()
        seen = [type(event) for event in self.events]
        self.events.clear()
        return seen


async def test_directories_and_requests() -> None:
    watched = Watched()
    await watched.start()
    for path, kind in (
        (f"{znodes.BROKER_IDS}/1", BrokerChange),
        (f"{znodes.TOPICS}/t", TopicChange),
        (f"{znodes.DELETE_TOPICS}/t", TopicDeletion),
        (f"{znodes.ISR_CHANGE_PREFIX}1", IsrChangeNotification),
        (f"{znodes.LOG_DIR_EVENT_PREFIX}1", LogDirEventNotification),
        (znodes.PREFERRED_REPLICA_ELECTION, PreferredReplicaElection),
        (znodes.REASSIGN_PARTITIONS, PartitionReassignment),
    ):
        await watched.store.create(path)
        assert await watched.kinds() == [kind]
    await watched.store.set(znodes.REASSIGN_PARTITIONS, b"{}")
    assert await watched.kinds() == [PartitionReassignment]
    # This may be all that is heard of a next request that is there already.
    await watched.store.delete(znodes.REASSIGN_PARTITIONS)
    assert await watched.kinds() == [PartitionReassignment]


async def test_brokers_topics_and_states() -> None:
    watched = Watched()
    await watched.start()
    await watched.store.create(znodes.broker_path(1))
    await watched.store.create(znodes.state_path(T0), make_parents=True)
    await watched.watches.watch_brokers([1])
    await watched.watches.watch_brokers([1])  # once is enough
    await watched.watches.watch_topics(["t"])
    await watched.watches.watch_state(T0)
    await watched.kinds()
    await watched.store.set(znodes.broker_path(1), b"x")
    await watched.store.set(znodes.topic_path("t"), b"x")
    await watched.store.set(znodes.state_path(T0), b"x")
    await settle()
    assert watched.events == [
        BrokerModification(1),
        PartitionModification("t"),
        PartitionReassignmentIsrChange(T0),
    ]
    watched.events.clear()
    await watched.watches.watch_brokers([])
    watched.watches.unwatch_topic("t")
    watched.watches.unwatch_state(T0)
    watched.watches.unwatch_state(T0)
    await watched.store.set(znodes.broker_path(1), b"y")
    await watched.store.set(znodes.topic_path("t"), b"y")
    await watched.store.set(znodes.state_path(T0), b"y")
    assert await watched.kinds() == []


async def test_after_stop_nothing_is_heard() -> None:
    watched = Watched()
    await watched.start()
    await watched.watches.watch_topics(["t"])
    watched.watches.stop()
    await watched.store.create(znodes.topic_path("t"))
    assert await watched.kinds() == []
