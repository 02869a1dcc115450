"""The share partitions of the partitions that this broker leads; mirrors `SharePartitionManager`.

A share partition is loaded from the share coordinator at the first request for it, and dropped when
another broker was leader or may have been, or when a write shows that another leader or a reset of
the offsets came first. In the next leader epoch the same leader keeps it, with all locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.runtime.tasks import gather_limited, spawn
from ottla.broker.share.log_reader import reset_offset
from ottla.broker.share.metrics import ShareStatistics
from ottla.broker.share.persister import (
    UNINITIALIZED_START_OFFSET,
    SharePartitionKey,
    ShareStatePersister,
    StateBatch,
)
from ottla.broker.share.share_partition import Acknowledgement, SharePartition, Transition
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import RemoteLogReader
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask
    from ottla.broker.share.group_settings import ShareGroupSettings

logger = logging.getLogger("ottla.share")

# Errors of a write after which the state here is not the stored one: it has to be read again.
_FENCED = frozenset(
    (
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,  # the coordinator has no state: the group was deleted
    )
)

# The errors of a load that a share consumer does not expect, and the one after which it retries.
_LOAD_ERRORS: dict[int, int] = dict.fromkeys(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
    ),
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
) | {ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_SERVER_ERROR}

# The errors of a write that a share consumer does not expect, and the one that Kafka returns
# instead. A write that was repeated because its response was lost can be stored all the same.
_WRITE_ERRORS = dict.fromkeys(
    (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)

# Members that retry at once do not cause a read each.
_RETRY_LOAD_MS = 100

# Share partitions of one member whose changes are stored at the same time.
_STORES_AT_ONCE = 64

# When a group that has lost its last member here is looked for again: soon, then less often.
_CHECK_MS = 5_000
_CHECK_MAX_MS = 300_000
# Of a reader that fences no leader.
_NO_LEADER_EPOCH = -1


class HostedPartition:
    """One share partition on this broker; `state` is None while it is loaded."""

    __slots__ = (
        "failure",
        "key",
        "leader_epoch",
        "lock_timer",
        "lock_timer_ms",
        "partition",
        "state",
        "watch_key",
    )

    def __init__(self, key: SharePartitionKey, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state: SharePartition | None = None
        self.failure: KafkaError | None = None
        self.lock_timer: TimerTask | None = None
        #: The deadline for which the timer is set.
        self.lock_timer_ms = 0
        self.watch_key = watch_key(key)


def watch_key(key: SharePartitionKey) -> Hashable:
    """Return the fetch purgatory's key for share fetches that wait for a share partition."""
    return ("share", key)


class SharePartitions:
    """Loads share partitions and changes their durable state. Loop thread only."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        persister: ShareStatePersister,
        settings: ShareGroupSettings,
        clock: Clock,
        timer: DelayQueue,
        spawn_task: Callable[[Coroutine[Any, Any, None], str], object] | None = None,
    ) -> None:
        self.settings = settings
        self.statistics = ShareStatistics()
        self._replica_manager = replica_manager
        self._persister = persister
        self._clock = clock
        self._timer = timer
        self._hosted: dict[SharePartitionKey, HostedPartition] = {}
        self._spawn = spawn_task or (lambda coroutine, name: spawn(coroutine, name=name))

    def __len__(self) -> int:
        return len(self._hosted)

    @property
    def remote_reader(self) -> RemoteLogReader | None:
        """Reads remote storage; None without tiered storage."""
        remote_fetches = self._replica_manager.remote_fetches
        return None if remote_fetches is None else remote_fetches.reader

    def in_flight_records(self) -> dict[str, int]:
        """Return the in-flight records of the share partitions led here, by group."""
        found: dict[str, int] = {}
        for key, hosted in self._hosted.items():
            if hosted.state is not None:
                records = hosted.state.window.in_flight_records
                found[key.group_id] = found.get(key.group_id, 0) + records
        return found

    def of_group(self, group_id: str) -> list[HostedPartition]:
        """Return the share partitions of a group here."""
        return [hosted for key, hosted in self._hosted.items() if key.group_id == group_id]

    def find(self, key: SharePartitionKey, topic: str) -> HostedPartition:
        """Return the share partition; start to load it if this broker does not have it yet.

        Raises the error for the client when this broker is not the leader, and for a while after
        the state could not be loaded.
        """
        partition = self._replica_manager.partition(topic, key.partition)
        partition.leader_log()
        hosted = self._hosted.get(key)
        if hosted is not None and not self._leads_on(hosted, partition):
            self._drop(hosted)
            hosted = None
        if hosted is None:
            hosted = self._hosted[key] = HostedPartition(key, partition)
            self._spawn(self._load(hosted), f"load share partition {key.group_id}")
        if hosted.failure is not None:
            raise hosted.failure
        return hosted

    @staticmethod
    def _leads_on(hosted: HostedPartition, partition: Partition) -> bool:
        """Return whether no other broker was leader since this one loaded the share partition."""
        epoch = partition.leader_epoch
        if hosted.partition is not partition or epoch not in (
            hosted.leader_epoch,
            hosted.leader_epoch + 1,
        ):
            return False
        hosted.leader_epoch = epoch
        if hosted.state is not None:
            hosted.state.leader_epoch = epoch
        return True

    def on_new_leader_epoch(self, partitions: Iterable[Partition]) -> None:
        """This broker leads these partitions on, such as after the shutdown of a follower."""
        led = {partition.key: partition for partition in partitions}
        for hosted in list(self._hosted.values()):
            partition = led.get(hosted.partition.key)
            if partition is not None and not self._leads_on(hosted, partition):
                self._drop(hosted)

    async def _load(self, hosted: HostedPartition) -> None:
        key = hosted.key
        try:
            stored = await self._persister.read(key, hosted.leader_epoch)
            log = hosted.partition.leader_log()
            start_offset = stored.start_offset
            if start_offset == UNINITIALIZED_START_OFFSET:
                reset = self.settings.offset_reset(key.group_id)
                start_offset = reset_offset(log, reset, self._clock.now_ms())
            hosted.state = SharePartition(
                key, hosted.leader_epoch, stored, start_offset, self.settings.limits(key.group_id)
            )
            logger.debug(
                "Loaded share partition %s-%d of group %s from offset %d in leader epoch %d",
                *hosted.partition.key,
                key.group_id,
                start_offset,
                hosted.leader_epoch,
                extra={"group": key.group_id},
            )
        except Exception as error:
            logger.info(
                "Share partition %s-%d of group %s cannot be loaded, members retry: %s",
                *hosted.partition.key,
                key.group_id,
                error_message(error) or error,
                extra={"group": key.group_id},
            )
            hosted.failure = KafkaError(_LOAD_ERRORS.get(error_code(error), error_code(error)))
            self._timer.schedule(_RETRY_LOAD_MS, lambda: self._drop(hosted))
        self.complete_delayed(hosted)

    def drop_partitions(self, keys: Iterable[tuple[str, int]]) -> None:
        """This broker does not lead these partitions any more."""
        gone = set(keys)
        for hosted in list(self._hosted.values()):
            if hosted.partition.key in gone:
                self._drop(hosted)

    def drop_group(self, group_id: str) -> None:
        """The group is empty or deleted, or its offsets are reset."""
        for hosted in self.of_group(group_id):
            self._drop(hosted)

    async def forget_deleted_groups(self) -> None:
        """End the counts of groups that no longer exist.

        Their coordinator does not tell the leaders of their partitions, so the share coordinator
        is asked for the state of a group without members here: soon after the last one has left,
        then less and less often.
        """
        now_ms = self._clock.now_ms()
        present = {key.group_id for key in self._hosted}
        for group_id, counts in list(self.statistics.groups.items()):
            if group_id in present or not counts.keys:
                counts.idle_since_ms = None
                continue
            if counts.idle_since_ms is None:
                counts.idle_since_ms = counts.check_at_ms = now_ms
            if now_ms < counts.check_at_ms:
                continue
            idle_ms = now_ms - counts.idle_since_ms
            counts.check_at_ms = now_ms + min(max(idle_ms, _CHECK_MS), _CHECK_MAX_MS)
            if not await self._any_has_state(counts.keys) and not self.of_group(group_id):
                self.statistics.forget(group_id)

    async def _any_has_state(self, keys: Iterable[SharePartitionKey]) -> bool:
        for key in list(keys):
            try:
                summary = await self._persister.summary(key, _NO_LEADER_EPOCH)
            except KafkaError:
                return True  # not known
            if summary.start_offset != UNINITIALIZED_START_OFFSET:
                return True
        return False

    def _drop(self, hosted: HostedPartition) -> None:
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]
        if hosted.lock_timer is not None:
            hosted.lock_timer.cancel()
            hosted.lock_timer = None
        self.complete_delayed(hosted)

    def complete_delayed(self, hosted: HostedPartition) -> None:
        """Records became available, or the share partition is gone."""
        self._replica_manager.fetch_purgatory.check_and_complete(hosted.watch_key)

    # Acknowledgements.

    def acknowledge(
        self,
        key: SharePartitionKey,
        topic: str,
        member_id: str,
        acknowledgements: list[Acknowledgement],
    ) -> Coroutine[Any, Any, None]:
        """Acknowledge records: decided by the locks at this call, durable when the coroutine
        returns, which has to run. Both raise KafkaError."""
        self._replica_manager.partition(topic, key.partition).leader_log()
        if key not in self._hosted:
            # As in Kafka: nothing was fetched from it here, so there is nothing to load it for.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        hosted = self.find(key, topic)
        state = hosted.state
        if state is None:
            # Nothing is acquired from a share partition that this broker has just begun to load.
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        state.limits = self.settings.limits(key.group_id)
        transition = state.acknowledge(member_id, acknowledgements, self._clock.now_ms())
        return self._store_acknowledged(hosted, state, transition, acknowledgements)

    async def _store_acknowledged(
        self,
        hosted: HostedPartition,
        state: SharePartition,
        transition: Transition,
        acknowledgements: list[Acknowledgement],
    ) -> None:
        await self._store(hosted, state, transition)
        self.statistics.acknowledged(hosted.key, acknowledgements)

    def release(self, member_id: str, group_id: str) -> Coroutine[Any, Any, None]:
        """Release all records that a member has acquired at this call; durable when the coroutine
        returns, which has to run. Failures are logged."""
        limits = self.settings.limits(group_id)
        stores = []
        for hosted in self.of_group(group_id):
            state = hosted.state
            if state is not None:
                state.limits = limits
                transition = state.release(member_id)
                stores.append(self._store_released(hosted, state, transition, member_id))
        return gather_limited(stores, _STORES_AT_ONCE)

    async def _store_released(
        self,
        hosted: HostedPartition,
        state: SharePartition,
        transition: Transition,
        member_id: str,
    ) -> None:
        try:
            await self._store(hosted, state, transition)
        except KafkaError as error:
            logger.info(
                "Records of member %s in %s stay locked until their locks end: %s",
                member_id,
                hosted.partition.key,
                error,
                extra={"group": hosted.key.group_id},
            )

    async def _store(
        self, hosted: HostedPartition, state: SharePartition, transition: Transition
    ) -> None:
        if transition.batches:
            try:
                await self._persister.write(hosted.key, state.update(transition.batches))
            except BaseException as error:
                state.rollback(transition, self._clock.now_ms())
                if error_code(error) in _FENCED:
                    self._drop(hosted)
                self.schedule_locks(hosted)
                self.complete_delayed(hosted)  # locks can have ended during the write
                code = _WRITE_ERRORS.get(error_code(error))
                if code is None:
                    raise
                raise KafkaError(code, error_message(error) or "") from error
            state.commit(transition)
        self.schedule_locks(hosted)
        self.complete_delayed(hosted)

    # Acquisition locks.

    def schedule_locks(self, hosted: HostedPartition) -> None:
        """Call `_end_locks` when the next lock ends."""
        state = hosted.state
        if state is None or self._hosted.get(hosted.key) is not hosted:
            return
        now_ms = self._clock.now_ms()
        if hosted.lock_timer is not None:
            if hosted.lock_timer_ms <= now_ms + state.limits.lock_duration_ms:
                return  # a later deadline is scheduled when the timer runs
            hosted.lock_timer.cancel()  # the group has a shorter duration now
            hosted.lock_timer = None
        deadline_ms = state.next_deadline_ms()
        if deadline_ms is None:
            return
        hosted.lock_timer_ms = deadline_ms
        # One less, because the timer waits for the end of the millisecond that has begun: a lock
        # ends up to one millisecond early rather than late, as with Kafka's SystemTimer.
        delay_ms = max(0, deadline_ms - now_ms - 1)
        hosted.lock_timer = self._timer.schedule(delay_ms, lambda: self._end_locks(hosted))

    def _end_locks(self, hosted: HostedPartition) -> None:
        hosted.lock_timer = None
        state = hosted.state
        if state is None or self._hosted.get(hosted.key) is not hosted:
            return
        state.limits = self.settings.limits(hosted.key.group_id)
        # The timer's deadline has come even where the wall clock was set back.
        ended = state.end_locks(max(hosted.lock_timer_ms, self._clock.now_ms()))
        self.complete_delayed(hosted)  # members that wait come before the write
        if ended:
            records = sum(batch.last_offset - batch.first_offset + 1 for batch in ended)
            self.statistics.locks_expired(hosted.key, records)
            self._spawn(
                self._store_ended(hosted, state, ended), f"end locks of {hosted.key.group_id}"
            )
        self.schedule_locks(hosted)

    async def _store_ended(
        self, hosted: HostedPartition, state: SharePartition, ended: list[StateBatch]
    ) -> None:
        try:
            await self._persister.write(hosted.key, state.update(ended))
        except KafkaError as error:
            logger.info(
                "Delivery counts of group %s in %s are not stored: %s",
                hosted.key.group_id,
                hosted.partition.key,
                error,
                extra={"group": hosted.key.group_id},
            )
            if error.code in _FENCED:
                self._drop(hosted)
