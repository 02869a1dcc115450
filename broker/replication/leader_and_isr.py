"""Applies the LeaderAndIsr and StopReplica requests of the controller.

Mirrors `becomeLeaderOrFollower` and `stopReplicas` of Kafka's `ReplicaManager`. Each request has
the controller epoch and a leader epoch for each partition. A request with a stale controller epoch
and a partition state with a stale leader epoch are refused, so a fenced controller or a delayed
request changes nothing. Loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

from ottla.broker.replication.partition import NO_LEADER, Partition
from ottla.broker.requests.error_responses import error_code, leader_and_isr_refused
from ottla.controller.model import REPAIR_STEP
from ottla.controller.tree.znodes_admin import ReplicaEpoch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.listed import listed
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
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from ottla.protocol.steps import Steps, Turn
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import NO_TOPIC_ID, ZERO_UUID, uuid_to_string
from ottla.storage.errors import DiskFull, LogDirectoryOffline, ResourceExhausted

if TYPE_CHECKING:
    from ottla.broker.replication.fetcher_manager import FetcherManager
    from ottla.broker.replication.replica_epochs import ReplicaEpochs
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.config import LogConfig
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.replication")

# Leader epochs of StopReplica that are never stale: for a deletion, and from controllers that send
# none (KIP-570).
EPOCH_DURING_DELETE = -2
_NO_EPOCH = -1


TopicPartitionState = tuple[str, bytes, LeaderAndIsrPartitionState]
LeadershipListener = Callable[[list[Partition], list[Partition]], None]


class _Changed:
    """The replicas that changed since the last pause."""

    __slots__ = ("following", "leading", "led", "offline")

    def __init__(self) -> None:
        self.leading: list[Partition] = []
        #: Leaders that were leaders before, now in a higher leader epoch.
        self.led: list[Partition] = []
        self.following: list[Partition] = []
        #: The failed log directories of replicas that could not start.
        self.offline: dict[TopicPartition, str] = {}


class LeaderAndIsrApplier:
    """Makes replicas leader or follower, and stops and deletes them.

    Mirrors this part of Kafka's `ReplicaManager`. A request of a controller with a lower epoch than
    the highest seen is fenced with STALE_CONTROLLER_EPOCH.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        log_config: Callable[[str], LogConfig],
        now_ms: Callable[[], int],
        *,
        fetchers: FetcherManager,
        epochs: ReplicaEpochs,
        on_leadership: LeadershipListener,
        before_delete: Callable[[TopicPartition], None],
        on_deleted: Callable[[list[TopicPartition]], None],
        on_new_leader_epoch: Callable[[list[Partition]], None] = lambda partitions: None,
        on_stopped: Callable[[TopicPartition, bool, bool], None] = lambda key, delete, topic: None,
    ) -> None:
        """`log_config` returns the settings of a topic's logs, `now_ms` the wall clock.

        `on_leadership` gets the partitions that this broker did not lead before, and those that it
        follows; `on_new_leader_epoch` those that it leads on, in a higher leader epoch.
        `before_delete` is called before a log is deleted, to abort its compaction. `on_stopped`
        gets each replica that stops, whether its log is deleted, and whether its topic is.
        """
        self.controller_epoch = 0
        self.fetchers = fetchers
        self.on_leadership = on_leadership
        self.on_new_leader_epoch = on_new_leader_epoch
        self.before_delete = before_delete
        self.on_deleted = on_deleted
        self.on_stopped = on_stopped
        self.epochs = epochs
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._log_config = log_config
        self._now_ms = now_ms

    # -- LeaderAndIsr ---------------------------------------------------------------------------

    async def become_leader_or_follower(
        self,
        request: LeaderAndIsrRequest,
        version: int,
        has_registered_again: Callable[[], bool] = lambda: False,
    ) -> LeaderAndIsrResponse:
        """Applies the partition states of the request; the response has an error code for each.

        `has_registered_again`: whether the broker epoch of the request is not that of this broker
        any more; what is left of the request is refused then.

        The change of one partition is atomic, that of the request is not: a request that is handled
        meanwhile may see some partitions in their old state, as in Kafka.
        """
        states = list(_states(request))
        codes: dict[TopicPartition, int] = {}
        following: list[Partition] = []
        try:
            refusal = await self._apply_request(
                request, states, codes, following, has_registered_again
            )
        finally:
            # All at once: a fetcher would otherwise start with the first few and retry them while
            # their leader is still creating its logs. A newer request may have changed some since.
            hosted = self._replica_manager.partitions
            self.fetchers.add_fetcher_for_partitions(
                [p for p in following if not p.is_leader and hosted.get(p.key) is p]
            )
        if refusal:
            return leader_and_isr_refused(request, version, refusal)
        ids = {topic: topic_id for topic, topic_id, _ in states}
        for topic in [topic for topic, topic_id in ids.items() if topic_id == ZERO_UUID]:
            ids[topic] = self._id_of_logs(topic, codes)
        return _leader_and_isr_response(codes, ids, version)

    def _id_of_logs(self, topic: str, partitions: Iterable[TopicPartition]) -> bytes:
        """For a controller that does not know the id of the topic: the one in the logs of these
        partitions, NO_TOPIC_ID if they have none, and the zero id if they do not tell."""
        logs = [self._log_manager.get(*key) for key in partitions if key.topic == topic]
        ids = {log.topic_id for log in logs if log is not None} - {None}
        missing = self._log_manager.offline_directories or self._log_manager.unusable_logs
        if len(ids) > 1 or (None in logs and missing):
            return ZERO_UUID
        return ids.pop() or NO_TOPIC_ID if ids else NO_TOPIC_ID

    async def _apply_request(
        self,
        request: LeaderAndIsrRequest,
        states: list[TopicPartitionState],
        codes: dict[TopicPartition, int],
        following: list[Partition],
        has_registered_again: Callable[[], bool],
    ) -> int:
        """Fill `codes` and `following`; return the error code where an epoch is stale.

        Other tasks run between two partitions, once what has changed so far is announced: requests
        on the old state are completed, and coordinators know of their partitions.
        """
        if self._is_stale(request, "LeaderAndIsr"):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        turn, changed = Turn(), _Changed()
        for number, (topic, topic_id, state) in enumerate(states):
            if number and turn.is_over:
                following += self._announce(changed)
                await turn.pause()
                changed = _Changed()
                if has_registered_again():
                    return ErrorCode.STALE_BROKER_EPOCH
                if self._is_stale(request, "LeaderAndIsr"):
                    return ErrorCode.STALE_CONTROLLER_EPOCH
            try:
                self._apply_state(topic, topic_id, state, codes, changed)
            except Exception as error:  # the others have changed, and are announced
                codes[TopicPartition(topic, state.partition_index)] = error_code(error)
        following += self._announce(changed)
        return ErrorCode.NONE

    def _is_stale(self, request: LeaderAndIsrRequest | StopReplicaRequest, name: str) -> bool:
        """Whether another controller was elected since; notes the epoch otherwise."""
        if request.controller_epoch < self.controller_epoch:
            logger.warning(
                "Ignoring %s request from controller %d: stale controller epoch %d, current %d",
                name,
                request.controller_id,
                request.controller_epoch,
                self.controller_epoch,
            )
            return True
        self.controller_epoch = request.controller_epoch
        return False

    def _apply_state(
        self,
        topic: str,
        topic_id: bytes,
        state: LeaderAndIsrPartitionState,
        codes: dict[TopicPartition, int],
        changed: _Changed,
    ) -> None:
        key = TopicPartition(topic, state.partition_index)
        partition = self._replica_manager.get_or_create_partition(key)
        code = codes[key] = self._check(partition, topic_id, state)
        if code in (ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH):
            _log_stale_leader_epoch(partition, state)
        if code == ErrorCode.NONE and state.leader_epoch > partition.leader_epoch:
            self._make(partition, topic_id, state, codes, changed)
        elif partition.log is None and partition.leader_epoch < 0:
            self._replica_manager.remove_partition(key)

    def _announce(self, changed: _Changed) -> list[Partition]:
        """Tell the other parts of the broker; return the partitions that became followers."""
        if changed.offline:
            logger.error(
                "Failed to become leader or follower of %d partitions in offline log dirs: %s",
                len(changed.offline),
                listed(changed.offline),
            )
            for directory in set(changed.offline.values()):
                self._replica_manager.on_directory_failure(directory)
        leading, led, following = (
            [partition for partition in partitions if not partition.offline]
            for partitions in (changed.leading, changed.led, changed.following)
        )
        self.fetchers.remove_fetcher_for_partitions([*leading, *led, *following])
        for partition in (*leading, *led, *following):
            # Requests that wait on the old state are completed with the error of the new one.
            self._replica_manager.complete_all_delayed_requests(partition)
        self._replica_manager.session_watches.end_silence()
        self.on_leadership(leading, following)
        self.on_new_leader_epoch(led)
        return following

    def _check(
        self, partition: Partition, topic_id: bytes, state: LeaderAndIsrPartitionState
    ) -> int:
        """The error code of a partition state that is refused; NONE for one to apply."""
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known_id = self._known_id(partition)
        if ZERO_UUID not in (topic_id, known_id) and topic_id != known_id:
            logger.error(
                "Refusing to become leader or follower of %s: its topic id is %s in the request "
                "and %s in the log, which stays as it is",
                partition.key,
                uuid_to_string(topic_id),
                uuid_to_string(known_id),
                extra=partition.key._asdict(),
            )
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if self._is_behind(partition, state):
            return ErrorCode.FENCED_LEADER_EPOCH
        if state.leader_epoch == partition.leader_epoch:
            if partition.topic_id != topic_id and partition.log is not None:
                # The tree has the id again, or has lost it: requests go by the name then.
                self._open_log(partition, topic_id)
                return ErrorCode.NONE
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._replica_manager.context.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _is_behind(self, partition: Partition, state: LeaderAndIsrPartitionState) -> bool:
        """Whether the tree has a lower leader epoch than this replica; notes it."""
        leader_epoch = state.leader_epoch
        log = self._log_manager.get(*partition.key)
        log_epoch = -1 if log is None else log.leader_epochs.latest_epoch
        if log is not None and log.log_end_offset == 0 and log_epoch > leader_epoch:
            # Of a leader that has appended nothing: there is nothing to compare.
            log_epoch = self._forget_epochs(log)
        own = ReplicaEpoch(
            max(partition.leader_epoch, log_epoch),
            log_epoch,
            0 if log is None else log.log_end_offset,
            partition.is_leader,
        )
        # A request that is sent again is that of a leader epoch which this replica has.
        is_first = (
            state.is_new and state.partition_epoch == 0 and leader_epoch != partition.leader_epoch
        )
        return self.epochs.is_behind(partition.key, leader_epoch, own, is_first=is_first)

    def _forget_epochs(self, log: Log) -> int:
        try:
            log.leader_epochs.clear()
        except OSError as error:
            log.log_directory.write_failed(error)
        return log.leader_epochs.latest_epoch

    def _known_id(self, partition: Partition) -> bytes:
        """The id in the log, or that of an earlier request; the zero id without any."""
        log = self._log_manager.get(*partition.key)
        if log is not None and log.topic_id is not None:
            return log.topic_id
        return partition.topic_id

    def _make(
        self,
        partition: Partition,
        topic_id: bytes,
        state: LeaderAndIsrPartitionState,
        codes: dict[TopicPartition, int],
        changed: _Changed,
    ) -> None:
        """Become leader or follower."""
        # The znode of a repaired state is younger than the one that this replica knows.
        is_repair = state.leader_epoch - partition.leader_epoch >= REPAIR_STEP
        if state.partition_epoch < partition.partition_epoch and not is_repair:
            return  # A response to AlterPartition has updated the partition meanwhile.
        leads = state.leader == self._replica_manager.context.broker_id
        was_leader = partition.is_leader
        is_missing = self._log_manager.get(*partition.key) is None
        try:
            log = self._open_log(partition, topic_id, is_new=state.is_new)
            (partition.make_leader if leads else partition.make_follower)(state, log)
        except Exception as error:
            codes[partition.key] = error_code(error)
            if isinstance(error, LogDirectoryOffline):
                partition.offline = True
                changed.offline[partition.key] = error.directory
                return
            if isinstance(error, DiskFull | ResourceExhausted):
                self._replica_manager.unstarted.add(partition.key)
            logger.error(
                "Failed to become leader or follower of %s: %s",
                partition.key,
                error,
                extra=partition.key._asdict(),
            )
            return
        self._replica_manager.unstarted.discard(partition.key)
        if not leads:
            self._replica_manager.began_empty.pop(partition.key, None)  # it copies the leader
        elif is_missing and state.leader_epoch and not state.is_new:
            self._note_missing(partition.key, state.leader_epoch, log)
        if logger.isEnabledFor(logging.DEBUG):
            _log_start(partition, log)
        if not leads:
            changed.following.append(partition)
        elif was_leader:
            changed.led.append(partition)
        else:
            changed.leading.append(partition)

    def _note_missing(self, key: TopicPartition, leader_epoch: int, log: Log) -> None:
        """A leader without a log: somebody has deleted or moved it. As in Kafka, it begins again at
        offset 0; but there it is not said."""
        if self._log_manager.known_directories.missing:
            return  # the log may be there, as the log manager says
        path = log.local.directory.path
        self._replica_manager.began_empty[key] = path
        logger.error(
            "%s leads in leader epoch %d without a log, and begins empty in %s. If its directory"
            " was deleted or moved by mistake, stop the broker, put it back and start the broker",
            key,
            leader_epoch,
            path,
            extra=key._asdict(),
        )

    def _open_log(self, partition: Partition, topic_id: bytes, *, is_new: bool = False) -> Log:
        """`is_new`: the partition has just been created, so that no broker has a log of it yet."""
        topic = partition.topic
        config = self._log_config(topic)
        log = self._log_manager.get_or_create(
            topic,
            partition.index,
            topic_id=None if topic_id == ZERO_UUID else topic_id,
            config=config,
            now_ms=self._now_ms(),
            is_new=is_new,
        )
        if partition.log is None and log.config.values != config.values:
            log.update_config(config)  # from before its topic was in the tree
        partition.topic_id = topic_id
        return log

    # -- StopReplica ----------------------------------------------------------------------------

    def stop_replicas(
        self, request: StopReplicaRequest, kept: Container[TopicPartition] = ()
    ) -> Steps[StopReplicaResponse]:
        """Stop replicas, and delete the logs of those for which the request says so.

        May pause between two partitions. A stale controller epoch fails the request with
        STALE_CONTROLLER_EPOCH, a stale leader epoch the partition with FENCED_LEADER_EPOCH, which
        those of `kept` get, too.
        """
        response = StopReplicaResponse()
        if self._is_stale(request, "StopReplica"):
            return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        for number, (key, leader_epoch, delete) in enumerate(_stops(request)):
            if number:
                yield
                if self._is_stale(request, "StopReplica"):
                    return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
            fenced = ErrorCode.FENCED_LEADER_EPOCH
            code = fenced if key in kept else self._stop(key, leader_epoch, delete)
            if code == ErrorCode.NONE and delete:
                self.on_deleted([key])  # in this step: after a pause it may be there again
            response.partition_errors.append(
                StopReplicaPartitionError(key.topic, key.partition, code)
            )
        return response

    def _stop(self, key: TopicPartition, leader_epoch: int, delete: bool) -> int:
        partitions = self._replica_manager.partitions
        partition = partitions.get(key)
        if partition is not None:
            if partition.offline and not (delete and self._log_manager.is_gone(*key)):
                return ErrorCode.KAFKA_STORAGE_ERROR
            special = leader_epoch in (EPOCH_DURING_DELETE, _NO_EPOCH)
            if not special and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            self.fetchers.remove_fetcher_for_partitions([partition])
            if delete:
                self._replica_manager.remove_partition(key)
                self.epochs.discard(key)
            partition.is_leader = False
            self.on_stopped(key, delete, delete and leader_epoch == EPOCH_DURING_DELETE)
        try:
            if delete:
                # A log without a partition is from before the last restart of this broker.
                self.before_delete(key)
                self._log_manager.delete_async(key.topic, key.partition, self._now_ms())
        except Exception as error:
            return error_code(error)
        finally:
            if partition is not None:
                self._replica_manager.complete_all_delayed_requests(partition)
        return ErrorCode.NONE

    # -- stepping down --------------------------------------------------------------------------

    def step_down(self, partition: Partition, reason: str) -> None:
        """Stops leading until a LeaderAndIsr with a higher leader epoch arrives.

        From now on appends and fetches are refused with NOT_LEADER_OR_FOLLOWER, and those that wait
        are completed with it.
        """
        if not partition.is_leader:
            return
        logger.warning(
            "[Partition %s] Stepping down as leader of epoch %d: %s",
            partition.key,
            partition.leader_epoch,
            reason,
            extra=partition.key._asdict(),
        )
        partition.resign()
        self._replica_manager.complete_all_delayed_requests(partition)
        self.on_leadership([], [partition])

    def step_down_where_replaced(self, request: UpdateMetadataRequest) -> Steps[None]:
        """Step down where the metadata have another leader of a higher epoch, or a new topic.

        May pause between two partitions.

        Usually the LeaderAndIsr or StopReplica that says so was before; it was not if this broker
        was not registered at that time.
        """
        own = self._replica_manager.context.broker_id
        partitions = self._replica_manager.partitions
        for topic, topic_id, state in _metadata_states(request):
            yield
            partition = partitions.get((topic, state.partition_index))
            if partition is None or not partition.is_leader or state.leader < NO_LEADER:
                continue
            if ZERO_UUID not in (topic_id, partition.topic_id) and topic_id != partition.topic_id:
                self.step_down(partition, "the topic was deleted and created again")
            elif state.leader != own and state.leader_epoch > partition.leader_epoch:
                self.step_down(
                    partition, f"broker {state.leader} leads in epoch {state.leader_epoch}"
                )

    def leader_epoch(self, key: TopicPartition) -> int:
        """The leader epoch of a replica, -1 when there is none."""
        partition = self._replica_manager.partitions.get(key)
        return -1 if partition is None else partition.leader_epoch

    def stop_stray(self, key: TopicPartition) -> None:
        """Stop the replica of a stray log before it is renamed, as if StopReplica had arrived."""
        partition = self._replica_manager.remove_partition(key)
        self.epochs.discard(key)
        if partition is not None:
            self.fetchers.remove_fetcher_for_partitions([partition])
            partition.resign()
            self.on_stopped(key, True, False)
            self._replica_manager.complete_all_delayed_requests(partition)
        self.before_delete(key)

    def on_strays_removed(self, keys: list[TopicPartition]) -> None:
        """Stray logs are renamed: announce that the partitions are deleted here."""
        self.on_deleted(keys)


def _log_stale_leader_epoch(partition: Partition, state: LeaderAndIsrPartitionState) -> None:
    """The controller sends a state again after a lost response, so an equal epoch is usual."""
    logger.log(
        logging.DEBUG if state.leader_epoch == partition.leader_epoch else logging.INFO,
        "Ignoring LeaderAndIsr request for partition %s since its associated leader epoch %d is "
        "not higher than the current leader epoch %d",
        partition.key,
        state.leader_epoch,
        partition.leader_epoch,
        extra=partition.key._asdict(),
    )


def _log_start(partition: Partition, log: Log) -> None:
    """At DEBUG, as a request may have thousands of partitions."""
    logger.debug(
        "%s %s starts at leader epoch %d from offset %d with high watermark %d. "
        "Current leader is %d.",
        "Leader" if partition.is_leader else "Follower",
        partition.key,
        partition.leader_epoch,
        log.log_end_offset,
        log.high_watermark,
        partition.leader_id,
        extra=partition.key._asdict(),
    )


def _states(request: LeaderAndIsrRequest) -> Iterable[TopicPartitionState]:
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state


def _metadata_states(
    request: UpdateMetadataRequest,
) -> Iterable[tuple[str, bytes, UpdateMetadataPartitionState]]:
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
