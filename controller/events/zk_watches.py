"""The watches of the controller on the znode tree: each only queues an event.

They are set before the tree is read, so that no change in between is missed, and are removed when
the controller resigns. They mirror the change handlers of Kafka's `KafkaController`.
"""

from collections.abc import Callable, Collection, Iterable

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
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    CHANGED,
    DELETED,
    REARMED,
    WatchCallback,
    WatchHandle,
    ZnodeStore,
)
from ottla.protocol.topics import TopicPartition

CHILDREN_SIGNALS: dict[str, Event] = {
    znodes.BROKER_IDS: BrokerChange(),
    znodes.TOPICS: TopicChange(),
    znodes.DELETE_TOPICS: TopicDeletion(),
    znodes.LOG_DIR_EVENT_NOTIFICATION: LogDirEventNotification(),
    znodes.ISR_CHANGE_NOTIFICATION: IsrChangeNotification(),
}
REQUEST_SIGNALS: dict[str, Event] = {
    znodes.PREFERRED_REPLICA_ELECTION: PreferredReplicaElection(),
    znodes.REASSIGN_PARTITIONS: PartitionReassignment(),
}


class ZkWatches:
    """Sets and removes the watches; `put` queues an event."""

    def __init__(self, store: ZnodeStore, put: Callable[[Event], None]) -> None:
        self.store = store
        self.put = put
        self._general: list[WatchHandle] = []
        self._brokers: dict[int, WatchHandle] = {}
        self._topics: dict[str, WatchHandle] = {}
        self._states: dict[TopicPartition, WatchHandle] = {}

    def _signal(self, event: Event, kinds: tuple[str, ...] | None = None) -> WatchCallback:
        return lambda seen: self.put(event) if kinds is None or seen.kind in kinds else None

    async def watch_general(self) -> None:
        """Watch the children of five znodes, and the two znodes of administrative requests.

        Of the latter also the deletion: the next request may have been there before the watch was
        set again.
        """
        for path, event in CHILDREN_SIGNALS.items():
            self._general.append(await self.store.watch_children(path, self._signal(event)))
        for path, event in REQUEST_SIGNALS.items():
            self._general.append(await self.store.watch_data(path, self._signal(event)))

    async def watch_brokers(self, broker_ids: Collection[int]) -> None:
        """Watch these brokers, and no others any more."""
        wanted = set(broker_ids)
        for broker_id in [each for each in self._brokers if each not in wanted]:
            self._brokers.pop(broker_id).cancel()
        for broker_id in broker_ids:
            if broker_id not in self._brokers:
                self._brokers[broker_id] = await self.store.watch_data(
                    znodes.broker_path(broker_id),
                    self._signal(BrokerModification(broker_id), (CHANGED, REARMED)),
                )

    async def watch_topics(self, topics: Iterable[str]) -> None:
        new = [topic for topic in topics if topic not in self._topics]
        # Deleted: it may be there again at once, which is no change of the children.
        kinds = (CHANGED, DELETED, REARMED)
        handles = await self.store.watch_data_many(
            [
                (znodes.topic_path(topic), self._signal(PartitionModification(topic), kinds))
                for topic in new
            ]
        )
        self._topics.update(zip(new, handles, strict=True))

    def unwatch_topic(self, topic: str) -> None:
        """Before its znode is deleted too, as the deletion is not a modification."""
        _cancel(self._topics.pop(topic, None))

    async def watch_state(self, partition: TopicPartition) -> None:
        """For a reassignment, if brokers change the ISR without AlterPartition."""
        if partition not in self._states:
            self._states[partition] = await self.store.watch_data(
                znodes.state_path(partition),
                self._signal(PartitionReassignmentIsrChange(partition), (CHANGED, REARMED)),
            )

    def unwatch_state(self, partition: TopicPartition) -> None:
        _cancel(self._states.pop(partition, None))

    def stop(self) -> None:
        for handle in (
            *self._general,
            *self._brokers.values(),
            *self._topics.values(),
            *self._states.values(),
        ):
            handle.cancel()
        self._general.clear()
        self._brokers.clear()
        self._topics.clear()
        self._states.clear()


def _cancel(handle: WatchHandle | None) -> None:
    if handle is not None:
        handle.cancel()
