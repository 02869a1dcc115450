"""What the controller orders: lead, follow, stop (LeaderAndIsr and StopReplica).

Mirrors the role half of Kafka's `ReplicaManager`. Each order carries the controller's epoch and the
partition's leader epoch; orders that are older than what is known are refused, so a deposed
controller or a late request changes nothing. Loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.replication.partition import Partition
from ottla.broker.requests.error_map import error_code
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import LogDirectoryOffline

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.config import LogConfig
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.replication")

# Leader epochs of StopReplica that are never too old: for a deletion, and for controllers that
# know none (KIP-570).
_EPOCH_DURING_DELETE = -2
_NO_EPOCH = -1

# New partitions need files, a millisecond or more each, and a request may name thousands: after so
# many of them everybody else gets a turn.
_PARTITIONS_A_TURN = 32

Named = tuple[str, bytes, LeaderAndIsrPartitionState]
Roles = dict[Partition, LeaderAndIsrPartitionState]
LeadershipListener = Callable[[list[Partition], list[Partition]], None]


class Fetchers(Protocol):
    """Who copies from the leaders; see `fetcher_manager`."""

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Start, or start anew, to copy these from their leaders."""

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Copy these no more."""


class NoFetchers:
    """For a broker that is alone: there is nobody to follow."""

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do."""

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do."""


class LeaderAndIsrApplier:
    """Carries out the controller's orders about replicas."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        log_config: Callable[[str], LogConfig],
        now_ms: Callable[[], int],
        *,
        fetchers: Fetchers,
        on_leadership: LeadershipListener,
        before_delete: Callable[[TopicPartition], None],
        on_deleted: Callable[[list[TopicPartition]], None],
    ) -> None:
        """`log_config` gives the settings of a topic's logs, `now_ms` the wall clock.

        `before_delete` is called before a log is deleted, so that nothing works on it any more.
        """
        self.controller_epoch = 0
        self.fetchers = fetchers
        self.on_leadership = on_leadership
        self.before_delete = before_delete
        self.on_deleted = on_deleted
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._log_config = log_config
        self._now_ms = now_ms

    # -- LeaderAndIsr ---------------------------------------------------------------------------

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, version: int
    ) -> LeaderAndIsrResponse:
        """Takes the roles of the request; each partition gets an error code of its own.

        A partition changes without an await in between, the request as a whole does not: what
        comes meanwhile finds some of its partitions in their old roles, as it does in Kafka.
        """
        states = list(_states(request))
        codes: dict[TopicPartition, int] = {}
        following: list[Partition] = []
        try:
            deposed = await self._take_all(request, states, codes, following)
        finally:
            # All at once: a fetcher would else begin with the first few, and ask for them over and
            # over while their leader is still making its logs. Others may have had orders since.
            hosted = self._replica_manager.partitions
            self.fetchers.follow(
                [p for p in following if not p.is_leader and hosted.get(p.key) is p]
            )
        if deposed:
            return LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        ids = {topic: topic_id for topic, topic_id, _ in states}
        return _leader_and_isr_response(codes, ids, version)

    async def _take_all(
        self,
        request: LeaderAndIsrRequest,
        states: list[Named],
        codes: dict[TopicPartition, int],
        following: list[Partition],
    ) -> bool:
        """Fills `codes` and `following`; True when the controller was found to be deposed."""
        for start in range(0, max(len(states), 1), _PARTITIONS_A_TURN):
            if start:
                await asyncio.sleep(0)
            if request.controller_epoch < self.controller_epoch:
                logger.warning(
                    "controller %d with epoch %d is deposed (epoch %d rules): its order is ignored",
                    request.controller_id,
                    request.controller_epoch,
                    self.controller_epoch,
                )
                return True
            self.controller_epoch = request.controller_epoch
            following += self._take_roles(states[start : start + _PARTITIONS_A_TURN], codes)
        return False

    def _take_roles(self, states: list[Named], codes: dict[TopicPartition, int]) -> list[Partition]:
        """The error codes go to `codes`; the result are those that are to follow now."""
        ids: dict[str, bytes] = {}
        leaders: Roles = {}
        followers: Roles = {}
        own = self._replica_manager.context.broker_id
        for topic, topic_id, state in states:
            ids[topic] = topic_id
            key = TopicPartition(topic, state.partition_index)
            partition = self._hosted(key)
            code = self._check(partition, topic_id, state)
            codes[key] = code
            if code == ErrorCode.NONE and state.leader_epoch > partition.leader_epoch:
                (leaders if state.leader == own else followers)[partition] = state
            elif partition.log is None and partition.leader_epoch < 0:
                self._replica_manager.partitions.pop(key, None)
        led = self._apply(leaders, ids, codes, Partition.make_leader)
        following = self._apply(followers, ids, codes, Partition.make_follower)
        self.fetchers.stop([*led, *following])
        for partition in (*led, *following):
            # Who waited for the old role is answered with what holds now.
            self._replica_manager.wake_all(partition)
        self.on_leadership(led, following)
        return following

    def _hosted(self, key: TopicPartition) -> Partition:
        partitions = self._replica_manager.partitions
        found = partitions.get(key)
        if found is None:
            found = partitions[key] = Partition(key, self._replica_manager.context)
        return found

    def _check(
        self, partition: Partition, topic_id: bytes, state: LeaderAndIsrPartitionState
    ) -> int:
        """The error code of a state that may not be applied; 0 for one that may."""
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known_id = partition.topic_id
        if ZERO_UUID not in (topic_id, known_id) and topic_id != known_id:
            logger.error(
                "%s: the controller names another topic id than the log",
                partition.key,
                extra=partition.key._asdict(),
            )
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch < partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if state.leader_epoch == partition.leader_epoch:
            if known_id == ZERO_UUID != topic_id and partition.log is not None:
                partition.topic_id = topic_id
                self._open_log(partition, topic_id)
                return ErrorCode.NONE
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._replica_manager.context.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _apply(
        self,
        roles: Roles,
        ids: dict[str, bytes],
        codes: dict[TopicPartition, int],
        make: Callable[[Partition, LeaderAndIsrPartitionState, Log], bool],
    ) -> list[Partition]:
        done = []
        for partition, state in roles.items():
            if state.partition_epoch < partition.partition_epoch:
                continue  # An AlterPartition answer has brought news meanwhile.
            try:
                log = self._open_log(partition, ids[partition.topic], is_new=state.is_new)
                make(partition, state, log)
            except Exception as error:
                codes[partition.key] = error_code(error)
                partition.offline = isinstance(error, LogDirectoryOffline)
                logger.error(
                    "%s: cannot take its role: %s",
                    partition.key,
                    error,
                    extra=partition.key._asdict(),
                )
                continue
            done.append(partition)
        return done

    def _open_log(self, partition: Partition, topic_id: bytes, *, is_new: bool = False) -> Log:
        """`is_new`: the controller knows that nobody has this partition on any disk yet."""
        topic = partition.topic
        log = self._log_manager.get_or_create(
            topic,
            partition.index,
            topic_id=None if topic_id == ZERO_UUID else topic_id,
            config=self._log_config(topic),
            now_ms=self._now_ms(),
            is_new=is_new,
        )
        if topic_id != ZERO_UUID:
            partition.topic_id = topic_id
        return log

    # -- StopReplica ----------------------------------------------------------------------------

    def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stops replicas, and deletes their data where the request says so."""
        if request.controller_epoch < self.controller_epoch:
            return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        response = StopReplicaResponse()
        deleted: list[TopicPartition] = []
        for key, leader_epoch, delete in _stops(request):
            code = self._stop(key, leader_epoch, delete)
            if code == ErrorCode.NONE and delete:
                deleted.append(key)
            response.partition_errors.append(
                StopReplicaPartitionError(key.topic, key.partition, code)
            )
        if deleted:
            self.on_deleted(deleted)
        return response

    def _stop(self, key: TopicPartition, leader_epoch: int, delete: bool) -> int:
        partitions = self._replica_manager.partitions
        partition = partitions.get(key)
        if partition is not None:
            if partition.offline:
                return ErrorCode.KAFKA_STORAGE_ERROR
            special = leader_epoch in (_EPOCH_DURING_DELETE, _NO_EPOCH)
            if not special and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            self.fetchers.stop([partition])
            if delete:
                del partitions[key]
            partition.is_leader = False
        try:
            if delete:
                # A log without a partition is one of an earlier life of this process.
                self.before_delete(key)
                self._log_manager.delete_async(key.topic, key.partition, self._now_ms())
        except Exception as error:
            return error_code(error)
        finally:
            if partition is not None:
                self._replica_manager.wake_all(partition)
        return ErrorCode.NONE


def _states(request: LeaderAndIsrRequest) -> Iterable[Named]:
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state


def _stops(request: StopReplicaRequest) -> Iterable[tuple[TopicPartition, int, bool]]:
    delete = request.delete_partitions
    for old in request.ungrouped_partitions:
        yield TopicPartition(old.topic_name, old.partition_index), _NO_EPOCH, delete
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index), _NO_EPOCH, delete
    for group in request.topic_states:
        for state in group.partition_states:
            key = TopicPartition(group.topic_name, state.partition_index)
            yield key, state.leader_epoch, state.delete_partition


def _leader_and_isr_response(
    codes: dict[TopicPartition, int], ids: dict[str, bytes], version: int
) -> LeaderAndIsrResponse:
    response = LeaderAndIsrResponse()
    if version < 5:
        response.partition_errors = [
            LeaderAndIsrPartitionError(key.topic, key.partition, code)
            for key, code in codes.items()
        ]
        return response
    topics: dict[str, LeaderAndIsrTopicError] = {}
    for key, code in codes.items():
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = LeaderAndIsrTopicError(ids[key.topic])
            response.topics.append(topic)
        topic.partition_errors.append(LeaderAndIsrPartitionError("", key.partition, code))
    return response
