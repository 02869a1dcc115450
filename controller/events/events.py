"""The events of the controller, and the controller states while they are processed.

Mirrors Kafka's `ControllerEvent` and `ControllerState`. A signal has no state of the znode tree
("read the brokers again"), so two equal ones in the queue are the same as one. A call is the work
of a request, with a future for its response.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse


class ControllerState(Enum):
    """The kind of event that is processed; values as in Kafka's ControllerState metric."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17


class Startup(NamedTuple):
    """The broker has started: take part in the election."""


class ControllerChange(NamedTuple):
    """`/controller` was created or changed."""


class Reelect(NamedTuple):
    """`/controller` was deleted."""


class Expire(NamedTuple):
    """The session has expired, and with it registration and election of this broker."""


class RegisterBrokerAndReelect(NamedTuple):
    """A new session was opened after one has expired."""


class ForceResign(NamedTuple):
    """The store failed while an event was processed: resign, and take part in the election."""


class BrokerChange(NamedTuple):
    """Children of `/brokers/ids` changed."""


class BrokerModification(NamedTuple):
    """The data of one broker's node changed: its listeners or features."""

    broker_id: int


class BrokerResend(NamedTuple):
    """The request queue of a broker overflowed: send the full state."""

    broker_id: int


class TopicChange(NamedTuple):
    """Children of `/brokers/topics` changed."""


class PartitionModification(NamedTuple):
    """The data of one topic's node changed: partitions were added."""

    topic: str


class TopicDeletion(NamedTuple):
    """Children of `/admin/delete_topics` changed."""


class TopicDeletionRetry(NamedTuple):
    """Brokers have refused to delete replicas of these topics, some time ago."""

    topics: tuple[str, ...]


class TopicDeletionStopReplicaResponseReceived(NamedTuple):
    """The response to a StopReplica with delete: error codes by partition."""

    broker_id: int
    broker_epoch: int
    outcome: tuple[tuple[TopicPartition, int], ...]


class LeaderAndIsrResponseReceived(NamedTuple):
    """A response with errors, with the id of a topic that the controller does not know, or from a
    broker with offline log directories."""

    broker_id: int
    broker_epoch: int
    response: "LeaderAndIsrResponse"
    request: "LeaderAndIsrRequest"


class UpdateMetadataResponseReceived(NamedTuple):
    """A response with an error."""

    broker_id: int
    error_code: int


class SendIsrChanges(NamedTuple):
    """ISRs have changed some time ago: the brokers get them in one UpdateMetadata request."""


class LogDirEventNotification(NamedTuple):
    """Children of `/log_dir_event_notification` changed: a log directory failed."""


class IsrChangeNotification(NamedTuple):
    """Children of `/isr_change_notification` changed: a leader changed an ISR in the tree."""


class PreferredReplicaElection(NamedTuple):
    """`/admin/preferred_replica_election` was created."""


class PartitionReassignment(NamedTuple):
    """`/admin/reassign_partitions` was created."""


class PartitionReassignmentIsrChange(NamedTuple):
    """The state znode of a partition that is being reassigned changed."""

    partition: TopicPartition


class AutoLeaderBalance(NamedTuple):
    """The leader imbalance is due for a check."""


class UncleanLeaderElectionEnable(NamedTuple):
    """unclean.leader.election.enable was set to true, on the broker (None) or for a topic."""

    topic: str | None


class ShutDown(NamedTuple):
    """Resign and shut down; the last event."""


class Call:
    """The work of a request; `future` gets its result or exception.

    `work` also runs if this broker is not the active controller: it has to check that itself.
    """

    __slots__ = ("future", "name", "state", "work")

    def __init__(
        self,
        name: str,
        state: ControllerState,
        work: Callable[[], Awaitable[object]],
        future: "asyncio.Future[object]",
    ) -> None:
        self.name = name
        self.state = state
        self.work = work
        self.future = future

    def __repr__(self) -> str:
        return f"Call({self.name})"


Signal = (
    Startup
    | ControllerChange
    | Reelect
    | Expire
    | RegisterBrokerAndReelect
    | ForceResign
    | BrokerChange
    | BrokerModification
    | BrokerResend
    | TopicChange
    | PartitionModification
    | TopicDeletion
    | TopicDeletionRetry
    | TopicDeletionStopReplicaResponseReceived
    | LeaderAndIsrResponseReceived
    | UpdateMetadataResponseReceived
    | LogDirEventNotification
    | SendIsrChanges
    | IsrChangeNotification
    | PreferredReplicaElection
    | PartitionReassignment
    | PartitionReassignmentIsrChange
    | AutoLeaderBalance
    | UncleanLeaderElectionEnable
    | ShutDown
)
Event = Signal | Call

STATES: dict[type, ControllerState] = {
    Startup: ControllerState.CONTROLLER_CHANGE,
    ControllerChange: ControllerState.CONTROLLER_CHANGE,
    Reelect: ControllerState.CONTROLLER_CHANGE,
    Expire: ControllerState.CONTROLLER_CHANGE,
    RegisterBrokerAndReelect: ControllerState.CONTROLLER_CHANGE,
    ForceResign: ControllerState.CONTROLLER_CHANGE,
    BrokerChange: ControllerState.BROKER_CHANGE,
    BrokerModification: ControllerState.BROKER_CHANGE,
    BrokerResend: ControllerState.BROKER_CHANGE,
    TopicChange: ControllerState.TOPIC_CHANGE,
    PartitionModification: ControllerState.TOPIC_CHANGE,
    TopicDeletion: ControllerState.TOPIC_DELETION,
    TopicDeletionRetry: ControllerState.TOPIC_DELETION,
    TopicDeletionStopReplicaResponseReceived: ControllerState.TOPIC_DELETION,
    LeaderAndIsrResponseReceived: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
    UpdateMetadataResponseReceived: ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED,
    LogDirEventNotification: ControllerState.LOG_DIR_CHANGE,
    SendIsrChanges: ControllerState.ISR_CHANGE,
    IsrChangeNotification: ControllerState.ISR_CHANGE,
    PreferredReplicaElection: ControllerState.MANUAL_LEADER_BALANCE,
    PartitionReassignment: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    PartitionReassignmentIsrChange: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    AutoLeaderBalance: ControllerState.AUTO_LEADER_BALANCE,
    UncleanLeaderElectionEnable: ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE,
    ShutDown: ControllerState.CONTROLLER_SHUTDOWN,
}


def state_of(event: Event) -> ControllerState:
    if isinstance(event, Call):
        return event.state
    if isinstance(event, UncleanLeaderElectionEnable) and event.topic is not None:
        return ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE
    return STATES[type(event)]
