"""Brokers as the controller meets them: they take orders, serve partitions, propose ISRs."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import NO_TOPIC_ID, ZERO_UUID

DURING_DELETE = -2


class Hosted(NamedTuple):
    """A replica as its broker has it."""

    topic_id: bytes
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    recovery_state: int


class SimulatedBroker:
    """State of one process; a restart makes a new one that keeps ``logs`` and lost directories."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.controller_epoch = 0
        self.hosted: dict[TopicPartition, Hosted] = {}
        self.metadata: dict[TopicPartition, Hosted] = {}
        self.live_brokers: set[int] = set()
        self.lost_directory: set[TopicPartition] = set()
        #: Their directories were removed: they are offline, and can be deleted.
        self.gone_logs: set[TopicPartition] = set()
        self.refuse_deletion = False
        #: The ids of logs from before this process, by topic; None: they have none.
        self.log_ids: dict[str, bytes | None] = {}
        #: The leader epochs of logs from a newer state of the tree.
        self.newest_epochs: dict[TopicPartition, int] = {}
        #: A broker of Kafka does not say the ids of its logs.
        self.is_kafka = False
        self.violations: list[str] = []

    def handle(self, request: Message, version: int) -> Message:
        if isinstance(request, LeaderAndIsrRequest):
            return self._leader_and_isr(request)
        if isinstance(request, StopReplicaRequest):
            return self._stop_replica(request)
        assert isinstance(request, UpdateMetadataRequest), version
        return self._update_metadata(request)

    def _refusal(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    ) -> int:
        if request.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = request.controller_epoch
        return ErrorCode.NONE

    def _leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        refusal = self._refusal(request)
        if refusal:
            return LeaderAndIsrResponse(error_code=refusal)
        topics = []
        for topic in request.topic_states:
            rows = []
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                code = ErrorCode.NONE
                if partition in self.lost_directory | self.gone_logs:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif self.broker_id not in state.replicas:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif self._is_of_another_topic(topic.topic_name, topic.topic_id):
                    code = ErrorCode.INCONSISTENT_TOPIC_ID
                elif state.leader_epoch < self.newest_epochs.get(partition, -1):
                    code = ErrorCode.FENCED_LEADER_EPOCH
                else:
                    code = self._take(
                        partition,
                        Hosted(
                            topic.topic_id,
                            state.leader,
                            state.leader_epoch,
                            state.partition_epoch,
                            tuple(state.isr),
                            tuple(state.replicas),
                            state.leader_recovery_state,
                        ),
                    )
                rows.append(
                    LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=code
                    )
                )
            topic_id = topic.topic_id
            if topic_id == ZERO_UUID and not self.is_kafka:
                topic_id = self._id_of_logs(topic.topic_name)
            topics.append(LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=rows))
        return LeaderAndIsrResponse(topics=topics)

    def _is_of_another_topic(self, topic: str, topic_id: bytes) -> bool:
        known_id = self.log_ids.get(topic)
        return topic_id != ZERO_UUID and known_id not in (None, topic_id)

    def _id_of_logs(self, topic: str) -> bytes:
        known_id = self.log_ids.get(topic)
        if known_id is not None:
            return known_id
        ids = {each.topic_id for key, each in self.hosted.items() if key.topic == topic}
        ids.discard(ZERO_UUID)
        return ids.pop() if len(ids) == 1 else NO_TOPIC_ID

    def _take(self, partition: TopicPartition, state: Hosted) -> int:
        before = self.hosted.get(partition)
        if before is not None and state.leader_epoch < before.leader_epoch:
            if state.topic_id != before.topic_id:
                self.violations.append(
                    f"{partition} was made again with leader epoch {state.leader_epoch}, "
                    f"below {before.leader_epoch}"
                )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if before is not None and state.topic_id == ZERO_UUID:
            state = state._replace(topic_id=before.topic_id)
        if before is not None and before.leader_epoch == state.leader_epoch:
            stopped = before.leader == -1  # by a StopReplica of the same epoch
            other = before.leader != state.leader and before.topic_id == state.topic_id
            if other and not stopped:
                self.violations.append(
                    f"{partition} has two leaders of epoch {state.leader_epoch}: "
                    f"{before.leader} and {state.leader}"
                )
            if state.partition_epoch < before.partition_epoch:
                return ErrorCode.NONE  # an older ISR of the same leadership
        self.hosted[partition] = state
        return ErrorCode.NONE

    def _stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        refusal = self._refusal(request)
        rows = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                code = refusal or self._stop(partition, state.leader_epoch, state.delete_partition)
                rows.append(
                    StopReplicaPartitionError(
                        topic_name=topic.topic_name,
                        partition_index=state.partition_index,
                        error_code=code,
                    )
                )
        return StopReplicaResponse(error_code=refusal, partition_errors=rows)

    def _stop(self, partition: TopicPartition, leader_epoch: int, delete: bool) -> int:
        hosted = self.hosted.get(partition)
        if (
            hosted is not None
            and leader_epoch not in (-1, DURING_DELETE)
            and leader_epoch < hosted.leader_epoch
        ):
            return ErrorCode.FENCED_LEADER_EPOCH
        if delete and self.refuse_deletion:
            return ErrorCode.FENCED_LEADER_EPOCH
        if delete and partition in self.lost_directory:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if delete:
            self.hosted.pop(partition, None)
        elif hosted is not None:
            self.hosted[partition] = hosted._replace(leader=-1)
        return ErrorCode.NONE

    def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        refusal = self._refusal(request)
        if refusal:
            return UpdateMetadataResponse(error_code=refusal)
        self.live_brokers = {broker.id for broker in request.live_brokers}
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.leader == DURING_DELETE:
                    self.metadata.pop(partition, None)
                else:
                    self.metadata[partition] = Hosted(
                        topic.topic_id,
                        state.leader,
                        state.leader_epoch,
                        state.zk_version,
                        tuple(state.isr),
                        tuple(state.replicas),
                        0,
                    )
        return UpdateMetadataResponse()
