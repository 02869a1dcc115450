"""The immutable values of the controller: brokers, replica assignments, leader and ISR."""

from typing import NamedTuple

from ottla.protocol.topics import TopicPartition

NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""The leader in UpdateMetadata for a topic that is being deleted (KAFKA-2119)."""
EPOCH_DURING_DELETE = -2
"""The leader epoch in a StopReplica with delete: never stale (KIP-570)."""
NO_EPOCH = -1

REPAIR_STEP = 1000
"""How far above all replicas the leader epoch is with which a controller repairs a partition after
ZooKeeper was restored from an older copy. No series of elections gets there, so a broker that knows
of an older copy can tell such a state from those that a wrong ZooKeeper elects."""

RECOVERED = 0
RECOVERING = 1
"""The leader was elected out of the ISR and has not recovered yet (KIP-704)."""


class Endpoint(NamedTuple):
    listener_name: str
    security_protocol: str  # PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
    host: str
    port: int


class BrokerInfo(NamedTuple):
    """A registered broker; `epoch` is the czxid of its znode (KIP-380), -1 if unknown.

    `unclean_shutdown`: the broker states that its logs were not shut down cleanly before its
    process started, so that acknowledged records may be missing. Brokers of Kafka never do.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    features: dict[str, tuple[int, int]] = {}  # noqa: RUF012 - never changed; name -> (min, max)
    unclean_shutdown: bool = False

    def endpoint(self, listener_name: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None


class ReplicaAssignment(NamedTuple):
    """The replicas of a partition, and those of a reassignment in progress (KIP-455).

    During a reassignment `replicas` has the target replicas first, then the other original ones.
    Those that an earlier target had and that may not be stopped yet follow: they are in `adding`
    and in `removing`, so they are neither original nor target replicas, and Kafka's controllers
    remove them at the end.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def reassign_to(self, target: tuple[int, ...]) -> "ReplicaAssignment":
        """The assignment during a reassignment to `target`; replaces one in progress."""
        origin = self.origin_replicas
        union = target + tuple(replica for replica in origin if replica not in target)
        return ReplicaAssignment(
            union,
            tuple(replica for replica in union if replica not in origin),
            tuple(replica for replica in union if replica not in target),
        )

    def with_replaced(self, replicas: tuple[int, ...]) -> "ReplicaAssignment":
        """With replicas of an earlier target that are to be stopped."""
        return ReplicaAssignment(
            self.replicas + replicas, self.adding + replicas, self.removing + replicas
        )

    def without_replaced(self) -> "ReplicaAssignment":
        found = self
        for replica in set(self.adding) & set(self.removing):
            found = found.without(replica)
        return found

    def without(self, replica: int) -> "ReplicaAssignment":
        return ReplicaAssignment(
            tuple(each for each in self.replicas if each != replica),
            tuple(each for each in self.adding if each != replica),
            tuple(each for each in self.removing if each != replica),
        )


class LeaderAndIsr(NamedTuple):
    """The state znode of a partition; `partition_epoch` is that znode's version."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    recovery_state: int = RECOVERED
    partition_epoch: int = 0
    controller_epoch: int = 0

    def with_leader_and_isr(self, leader: int, isr: tuple[int, ...]) -> "LeaderAndIsr":
        """The next state with another leader or ISR: the leader epoch is incremented."""
        return self._replace(leader=leader, isr=isr, leader_epoch=self.leader_epoch + 1)

    def with_next_epoch(self) -> "LeaderAndIsr":
        return self._replace(leader_epoch=self.leader_epoch + 1)


class PartitionReplica(NamedTuple):
    partition: TopicPartition
    replica: int


class TopicState(NamedTuple):
    """The payload of a topic's znode."""

    topic_id: bytes | None
    assignments: dict[int, ReplicaAssignment]
