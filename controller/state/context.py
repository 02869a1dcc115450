"""The in-memory state of the active controller; mirrors Kafka's `ControllerContext`.

It is read from the store when the controller is elected; afterwards the event queue is its only
writer. Ordered dicts are used as sets where the order of iteration determines requests, so that the
same events always result in the same requests.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from ottla.controller.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    BrokerInfo,
    LeaderAndIsr,
    PartitionReplica,
    ReplicaAssignment,
)
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

NO_ASSIGNMENT = ReplicaAssignment(())


class PartitionState(Enum):
    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


class ControllerContext:
    """State with look-ups, without decisions."""

    def __init__(self) -> None:
        self.epoch = 0
        self.brokers: dict[int, BrokerInfo] = {}  # live, or live and shutting down
        self.shutting_down: set[int] = set()
        self.assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        self.topic_czxids: dict[str, int] = {}
        """A znode with another czxid is that of another topic of the name."""
        self.topics_with_refused_id: dict[str, set[int]] = {}
        """The brokers that refuse the id in the tree, as their logs have another one."""
        self.topics_without_id: dict[str, None] = {}
        """They had leaders before, so brokers may know their ids; see `TopicIds`."""
        self.leadership: dict[TopicPartition, LeaderAndIsr] = {}
        self.partitions_being_reassigned: dict[TopicPartition, None] = {}
        self.topics_being_reassigned: dict[str, int] = {}
        """How many of their partitions are: kept, as it is looked up for each partition."""
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[PartitionReplica, ReplicaState] = {}
        self.offline_directories: dict[int, set[TopicPartition]] = {}
        self.topics_to_delete: dict[str, None] = {}
        self.topics_with_deletion_started: set[str] = set()
        self.topics_ineligible_for_deletion: set[str] = set()
        self._partitions_by_broker: dict[int, dict[TopicPartition, None]] = {}

    def reset(self) -> None:
        """Back to the initial state, for a controller that resigns."""
        self.__init__()  # type: ignore[misc] # all fields to their initial values

    # Brokers

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker is registered and not shutting down."""
        return broker_id in self.brokers and broker_id not in self.shutting_down

    def live_broker_ids(self) -> list[int]:
        return [broker_id for broker_id in self.brokers if broker_id not in self.shutting_down]

    def is_online(
        self, broker_id: int, partition: TopicPartition, *, include_shutting_down: bool = False
    ) -> bool:
        """Whether a replica is online: its broker is live, its log directory not offline."""
        alive = broker_id in self.brokers if include_shutting_down else self.is_live(broker_id)
        return alive and partition not in self.offline_directories.get(broker_id, ())

    # Topics and assignments

    def forget_topic_id(self, topic: str) -> None:
        """The topic has none until `add_topic`, because no broker accepts it."""
        self.topic_names.pop(self.topic_ids.pop(topic, b""), None)
        self.topics_with_refused_id.pop(topic, None)
        self.topics_without_id[topic] = None

    def add_topic(self, topic: str, topic_id: bytes | None, czxid: int = -1) -> None:
        self.assignments.setdefault(topic, {})
        self.topic_czxids[topic] = czxid
        if topic_id is not None:
            if self.topic_ids.get(topic) != topic_id:
                self.topic_names.pop(self.topic_ids.get(topic, b""), None)
                self.topics_with_refused_id.pop(topic, None)
            self.topic_ids[topic] = topic_id
            self.topic_names[topic_id] = topic
            self.topics_without_id.pop(topic, None)

    def remove_topic(self, topic: str) -> None:
        self.topics_to_delete.pop(topic, None)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)
        self.topic_czxids.pop(topic, None)
        self.topics_without_id.pop(topic, None)
        self.topics_with_refused_id.pop(topic, None)
        topic_id = self.topic_ids.pop(topic, None)
        if topic_id is not None:
            self.topic_names.pop(topic_id, None)
        offline_directories = [each for each in self.offline_directories.values() if each]
        for index, assignment in self.assignments.pop(topic, {}).items():
            partition = TopicPartition(topic, index)
            self._index(partition, assignment.replicas, ())
            self.leadership.pop(partition, None)
            self.partition_states.pop(partition, None)
            self.end_reassignment(partition)
            for replica in assignment.replicas:
                self.replica_states.pop(PartitionReplica(partition, replica), None)
            for offline in offline_directories:
                offline.discard(partition)

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        """Empty when the partition is unknown."""
        return self.assignments.get(partition[0], {}).get(partition[1], NO_ASSIGNMENT)

    def set_assignment(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        of_topic = self.assignments.setdefault(partition[0], {})
        before = of_topic.get(partition[1], NO_ASSIGNMENT)
        of_topic[partition[1]] = assignment
        self._index(partition, before.replicas, assignment.replicas)

    def begin_reassignment(self, partition: TopicPartition) -> None:
        """Note that a reassignment is in progress; no effect if that is noted already."""
        if partition not in self.partitions_being_reassigned:
            self.partitions_being_reassigned[partition] = None
            running = self.topics_being_reassigned.get(partition[0], 0)
            self.topics_being_reassigned[partition[0]] = running + 1

    def end_reassignment(self, partition: TopicPartition) -> None:
        """Note that no reassignment is in progress."""
        if partition in self.partitions_being_reassigned:
            del self.partitions_being_reassigned[partition]
            self.topics_being_reassigned[partition[0]] -= 1
            if not self.topics_being_reassigned[partition[0]]:
                del self.topics_being_reassigned[partition[0]]

    def _index(
        self, partition: TopicPartition, before: tuple[int, ...], after: tuple[int, ...]
    ) -> None:
        for broker_id in before:
            if broker_id not in after:
                self._partitions_by_broker[broker_id].pop(partition, None)
        for broker_id in after:
            self._partitions_by_broker.setdefault(broker_id, {})[partition] = None

    def partitions(self) -> Iterator[TopicPartition]:
        for topic, of_topic in self.assignments.items():
            for index in of_topic:
                yield TopicPartition(topic, index)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for index in self.assignments.get(topic, ())]

    def has_partition(self, partition: TopicPartition) -> bool:
        return partition[1] in self.assignments.get(partition[0], ())

    def partitions_on(self, broker_id: int) -> list[TopicPartition]:
        return list(self._partitions_by_broker.get(broker_id, ()))

    def replicas_on(self, broker_ids: Iterable[int]) -> list[PartitionReplica]:
        return [
            PartitionReplica(partition, broker_id)
            for broker_id in broker_ids
            for partition in self._partitions_by_broker.get(broker_id, ())
        ]

    def replicas_of(self, topic: str) -> list[PartitionReplica]:
        return [
            PartitionReplica(TopicPartition(topic, index), replica)
            for index, assignment in self.assignments.get(topic, {}).items()
            for replica in assignment.replicas
        ]

    def replicas_of_partitions(
        self, partitions: Iterable[TopicPartition]
    ) -> list[PartitionReplica]:
        return [
            PartitionReplica(partition, replica)
            for partition in partitions
            for replica in self.assignment(partition).replicas
        ]

    def replicas_in_state(self, topic: str, state: ReplicaState) -> list[PartitionReplica]:
        states = self.replica_states
        return [each for each in self.replicas_of(topic) if states.get(each) is state]

    # Leadership

    def is_exempt_from_election(self, topic: str) -> bool:
        """Whether a topic is queued for deletion and gets no leaders any more.

        A topic with a reassignment in progress still gets leaders, as the reassignment has to
        complete before the deletion can start.
        """
        return topic in self.topics_to_delete and topic not in self.topics_being_reassigned

    def has_offline_leader(self, partition: TopicPartition) -> bool:
        """Whether a partition has a leader and ISR, and needs another leader."""
        state = self.leadership[partition]
        return not self.is_online(state.leader, partition) and not self.is_exempt_from_election(
            partition[0]
        )

    def partitions_led_by(self, broker_id: int) -> list[TopicPartition]:
        """The partitions with more than one replica that it leads, without topics to delete."""
        return [
            partition
            for partition in self._partitions_by_broker.get(broker_id, ())
            if partition in self.leadership
            and self.leadership[partition].leader == broker_id
            and len(self.assignment(partition).replicas) > 1
            and partition[0] not in self.topics_to_delete
        ]

    def stop_replica_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch in a StopReplica (KIP-570); never stale while the topic is deleted."""
        if partition[0] in self.topics_to_delete:
            return EPOCH_DURING_DELETE
        state = self.leadership.get(partition)
        return NO_EPOCH if state is None else state.leader_epoch

    def isr_members_before_unclean_restart(
        self,
        state_zxids: Mapping[TopicPartition, int],
        processed: Mapping[int, int] | None = None,
    ) -> dict[TopicPartition, frozenset[int]]:
        """The members of ISRs that were written before an unclean restart of those members.

        `state_zxids` are the mzxids of the state znodes. A broker that was shut down uncleanly
        and registered later (its broker epoch is a zxid, too) may have lost records that the ISR
        promises. `processed` are the broker epochs that earlier controllers have processed: a
        controller that had not heard of a restart may have written the ISR after it. Partitions
        with one replica are left out: there is no other to elect.
        """
        found: dict[TopicPartition, frozenset[int]] = {}
        for broker_id, broker in self.brokers.items():
            if not broker.unclean_shutdown:
                continue
            is_processed = processed is None or processed.get(broker_id) == broker.epoch
            for partition in self._partitions_by_broker.get(broker_id, ()):
                state = self.leadership.get(partition)
                if (
                    state is not None
                    and broker_id in state.isr
                    and not (
                        is_processed and state_zxids.get(partition, broker.epoch) >= broker.epoch
                    )
                    and len(self.assignment(partition).replicas) > 1
                    and not self.is_exempt_from_election(partition[0])
                ):
                    found[partition] = found.get(partition, frozenset()) | {broker_id}
        return found

    # Gauges

    def is_offline(self, partition: TopicPartition) -> bool:
        """Whether clients miss its leader."""
        return (
            self.partition_states.get(partition) is PartitionState.OFFLINE
            and partition[0] not in self.topics_with_deletion_started
        )

    def is_imbalanced(self, partition: TopicPartition) -> bool:
        """Whether it has a leader that is not the preferred one, and its topic stays."""
        return (
            partition in self.leadership
            and partition[0] not in self.topics_to_delete
            and not self.has_preferred_leader(partition)
        )

    def has_preferred_leader(self, partition: TopicPartition) -> bool:
        assignment = self.assignment(partition)
        state = self.leadership[partition]
        preferred = assignment.replicas[0] if assignment.replicas else -1
        if preferred in assignment.adding:  # it can lead only when it is in sync
            return preferred in state.isr
        return state.leader == preferred


class ControllerGauges(NamedTuple):
    """Kafka's gauges of KafkaController, in snake case."""

    active_controller_count: int = 0
    active_broker_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    reassigning_partitions_count: int = 0


def gauge_steps(context: ControllerContext, *, is_active: bool) -> Steps[ControllerGauges]:
    """Compute the gauges; the context may change at each pause.

    They have the meaning of Kafka's gauges of the same names. Computing them at each scrape is
    cheaper than counters that each change updates. All are zero unless this controller is active.
    """
    if not is_active:
        return ControllerGauges()
    offline = imbalance = to_delete = ineligible = 0
    for partition in list(context.partition_states):
        offline += context.is_offline(partition)
        imbalance += context.is_imbalanced(partition)
        yield
    for topic in list(context.topics_to_delete):
        for replica in context.replicas_of(topic):
            state = context.replica_states.get(replica)
            to_delete += state is not ReplicaState.DELETION_SUCCESSFUL
            ineligible += state is ReplicaState.DELETION_INELIGIBLE
            yield
    return ControllerGauges(
        active_controller_count=1,
        active_broker_count=len(context.brokers),
        offline_partitions_count=offline,
        preferred_replica_imbalance_count=imbalance,
        global_topic_count=len(context.assignments),
        global_partition_count=len(context.leadership),
        topics_to_delete_count=len(context.topics_to_delete),
        replicas_to_delete_count=to_delete,
        topics_ineligible_to_delete_count=len(context.topics_ineligible_for_deletion),
        replicas_ineligible_to_delete_count=ineligible,
        reassigning_partitions_count=len(context.partitions_being_reassigned),
    )
