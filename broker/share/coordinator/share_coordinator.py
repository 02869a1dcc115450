"""Keeps the durable state of share partitions in `__share_group_state`.

Mirrors Kafka's `ShareCoordinatorService`. Write-ahead: the state changes when the record of the
change is committed. Requests for one share partition wait for each other; writes that wait become
one record. With `share.coordinator.append.linger.ms`, the records of one partition of the topic
wait for others and become one batch, as in Kafka's `CoordinatorRuntime`. The default is to append
each at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.coordination.ports import (
    MOVED_ERRORS,
    UNAVAILABLE_ERRORS,
    AppendResult,
    CoordinatorLog,
    Defer,
)
from ottla.broker.coordination.stored_records import StoredRecords
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.keyed_locks import KeyedLocks
from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.coordinator.records import (
    StateRecord,
    read_record,
    snapshot_record,
    tombstone,
    update_record,
)
from ottla.broker.share.coordinator.state import ShareState, first_state, joined
from ottla.broker.share.persister import (
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    PersistedState,
    SharePartitionKey,
    StateSummary,
    StateUpdate,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import NONE
from ottla.protocol.records.record import Record
from ottla.protocol.topics import SHARE_STATE_TOPIC
from ottla.protocol.uuids import uuid_to_string

if TYPE_CHECKING:
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.share")


_NO_LEADER_EPOCH = -1


DeleteBefore = Callable[[int, int], None]


class _Write(NamedTuple):
    update: StateUpdate
    done: asyncio.Future[None]


class ShareCoordinatorSettings(NamedTuple):
    """The settings `share.coordinator.*` that the coordinator uses."""

    num_partitions: int = 50
    update_records_per_snapshot: int = 500
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000
    codec: int = NONE
    append_linger_ms: int = -1


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the key of FindCoordinator for a share partition."""
    return f"{key.group_id}:{uuid_to_string(key.topic_id)}:{key.partition}"


class ShareCoordinator:
    """Satisfies `ShareStatePersister` for the partitions that this broker leads.

    Every method raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE
    when this broker does not lead the partition of the key or could not store the change.
    """

    def __init__(
        self,
        settings: ShareCoordinatorSettings,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        delete_before: DeleteBefore = lambda partition, offset: None,
    ) -> None:
        """`delete_before` deletes the records of a partition of the topic below an offset."""
        self._delete_before = delete_before
        self._settings = settings
        self._clock = clock
        self.partitions: CoordinatedPartitions[ShareStatePartition] = CoordinatedPartitions(
            SHARE_STATE_TOPIC,
            settings.num_partitions,
            log,
            timer,
            clock,
            defer,
            ShareStatePartition,
            lambda partition: None,
            lambda partition: None,
        )
        self._appender = RecordAppender(
            log,
            clock,
            settings.codec,
            self.partitions.is_active,
            timer,
            settings.append_linger_ms,
        )
        # Writes that wait for a request of their key: one for each request of a member.
        self._writes: dict[SharePartitionKey, list[_Write]] = {}
        # Keys with a request in progress.
        self._locks: KeyedLocks[SharePartitionKey] = KeyedLocks()
        # Keys whose last append failed. Its record can be in the log all the same, and takes effect
        # with the next load unless the next record is a snapshot.
        self._uncertain: set[SharePartitionKey] = set()

    def startup(self, partition_count: int | None) -> None:
        """`partition_count` is that of the topic, None when it does not exist yet."""
        if partition_count is not None:
            self.partitions.partition_count = partition_count

    def shutdown(self) -> None:
        self.partitions.stop()

    # Records that are not needed.

    def prune(self) -> None:
        """Delete the records that no share partition needs, in all partitions led here."""
        for partition in self.partitions.active:
            offset = partition.needed_offset
            if offset <= partition.pruned_offset:
                continue
            try:
                self._delete_before(partition.index, offset)
            except Exception as problem:  # the partition moved, or its log directory failed
                logger.info(
                    "Records of %s-%d are not deleted: %s",
                    SHARE_STATE_TOPIC,
                    partition.index,
                    problem,
                    extra={"topic": SHARE_STATE_TOPIC, "partition": partition.index},
                )
            else:
                partition.pruned_offset = offset

    async def snapshot_cold(self) -> None:
        """Write snapshots of share partitions that did not get one for a while, as their records
        keep all records after them. Failures are left to the next time."""
        before_ms = self._clock.now_ms() - self._settings.cold_snapshot_interval_ms
        for partition in self.partitions.active:
            for key in partition.cold_keys(before_ms):
                try:
                    await self._snapshot(key)
                except KafkaError:
                    break

    async def _snapshot(self, key: SharePartitionKey) -> None:
        async with self._locks.locked(key):
            partition, state = self._find(key)
            if state is not None:
                fresh = state._replace(
                    snapshot_epoch=state.snapshot_epoch + 1,
                    write_timestamp_ms=self._clock.now_ms(),
                )
                await self._append_snapshot(partition, key, fresh)

    # What leaders and the group coordinator call.

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """See `ShareStatePersister.initialize`."""
        async with self._locks.locked(key):
            partition, state = self._find(key)
            if state is not None and state_epoch <= state.state_epoch:
                if not _is_repeated(state, state_epoch, start_offset):
                    raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
                return
            snapshot_epoch = 0 if state is None else state.snapshot_epoch + 1
            fresh = first_state(state_epoch, start_offset, self._clock.now_ms(), snapshot_epoch)
            await self._append_snapshot(partition, key, fresh)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """See `ShareStatePersister.read`."""
        async with self._locks.locked(key):
            partition, state = self._find(key)
            if state is None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Read operation on uninitialized share partition not allowed.",
                )
            if leader_epoch not in (_NO_LEADER_EPOCH, state.leader_epoch):
                if leader_epoch < state.leader_epoch:
                    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
                update = StateUpdate(
                    state.state_epoch,
                    leader_epoch,
                    state.start_offset,
                    state.delivery_complete_count,
                    (),
                )
                await self._append_update(partition, key, state, update)
            return PersistedState(state.state_epoch, state.start_offset, state.batches)

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """See `ShareStatePersister.write`."""
        write = _Write(update, asyncio.get_running_loop().create_future())
        waiting = self._writes.get(key)
        if waiting is None:
            self._writes[key] = [write]
            # A task of its own: a request that is cancelled takes no other one with it.
            spawn(self._write_waiting(key), name="write share state")
        else:
            waiting.append(write)
        await write.done

    async def _write_waiting(self, key: SharePartitionKey) -> None:
        """Store the writes that have come when it is their turn, as one record."""
        async with self._locks.locked(key):
            writes = self._writes.pop(key)
            try:
                partition, state = self._find(key)
                if state is None:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        "Write operation on uninitialized share partition not allowed.",
                    )
                writes = _fenced(state, writes)
                if writes:
                    update = joined([write.update for write in writes])
                    await self._append_update(partition, key, state, update)
            except Exception as error:
                for write in writes:
                    _fail(write, error)
            else:
                for write in writes:
                    if not write.done.done():
                        write.done.set_result(None)

    async def delete(self, key: SharePartitionKey) -> None:
        """See `ShareStatePersister.delete`."""
        async with self._locks.locked(key):
            partition, state = self._find(key)
            if state is not None or key in self._uncertain:
                await self._append(partition, *tombstone(key), StateRecord(key))
                self._uncertain.discard(key)

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        """See `ShareStatePersister.summary`; a key without state has a start offset of -1."""
        _, state = self._find(key)
        if state is None:
            return StateSummary(
                0,
                0,
                UNINITIALIZED_START_OFFSET,
                UNKNOWN_DELIVERY_COMPLETE_COUNT,
            )
        return StateSummary(
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
        )

    def _find(self, key: SharePartitionKey) -> tuple[ShareStatePartition, ShareState | None]:
        name = coordinator_key(key)
        code = self.partitions.status_of(name)
        partition = self.partitions.home_of(name)
        if code or partition is None:
            raise KafkaError(code or ErrorCode.NOT_COORDINATOR)
        return partition, partition.states.get(key)

    async def _append_update(
        self,
        partition: ShareStatePartition,
        key: SharePartitionKey,
        state: ShareState,
        update: StateUpdate,
    ) -> None:
        """Append an update, or a snapshot after many of them."""
        updated = state.updated(update)
        many = partition.updates.get(key, 0) >= self._settings.update_records_per_snapshot
        if many or key in self._uncertain:
            fresh = updated._replace(
                snapshot_epoch=state.snapshot_epoch + 1, write_timestamp_ms=self._clock.now_ms()
            )
            await self._append_snapshot(partition, key, fresh)
            return
        record = update_record(key, updated, update)
        await self._append(partition, *record, StateRecord(key, update=update))

    async def _append_snapshot(
        self, partition: ShareStatePartition, key: SharePartitionKey, state: ShareState
    ) -> None:
        record = snapshot_record(key, state)
        await self._append(partition, *record, StateRecord(key, snapshot=state))
        self._uncertain.discard(key)

    async def _append(
        self, partition: ShareStatePartition, key: bytes, value: bytes | None, record: StateRecord
    ) -> None:
        """Append a record; replay it when it is committed. Raises KafkaError.

        The append has a deadline of its own (`CoordinatorLog`).
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_result(error_code: int, base_offset: int) -> None:
            if error_code == ErrorCode.NONE and self.partitions.is_active(partition):
                partition.replay(record, base_offset)
            elif error_code == ErrorCode.NONE:
                error_code = ErrorCode.NOT_COORDINATOR
            if not done.done():
                done.set_result(error_code)

        self._appender.append(partition, key, value, on_result)
        code = await done
        if code == ErrorCode.NONE:
            return
        if self.partitions.is_active(partition):
            self._uncertain.add(record.key)
        raise KafkaError(_response_code(code))


def _fenced(state: ShareState, writes: list[_Write]) -> list[_Write]:
    """Return the writes that may be stored; the others fail."""
    accepted = []
    leader_epoch = state.leader_epoch
    for write in writes:
        update = write.update
        if _NO_LEADER_EPOCH < update.leader_epoch < leader_epoch:
            _fail(write, KafkaError(ErrorCode.FENCED_LEADER_EPOCH))
        elif -1 < update.state_epoch < state.state_epoch:
            _fail(write, KafkaError(ErrorCode.FENCED_STATE_EPOCH))
        else:
            accepted.append(write)
            leader_epoch = max(leader_epoch, update.leader_epoch)
    return accepted


def _fail(write: _Write, error: Exception) -> None:
    """One exception for each request: each gets a traceback of its own. A request that was
    cancelled needs none."""
    if write.done.done():
        return
    if isinstance(error, KafkaError):
        error = KafkaError(error.code, error.message)
    write.done.set_exception(error)


def _is_repeated(state: ShareState, state_epoch: int, start_offset: int) -> bool:
    """Return whether this initialization is repeated: the sender got no response.

    Kafka stores it again, which would take back what was acknowledged meanwhile.
    """
    if state_epoch != state.state_epoch:
        return False
    is_unchanged = start_offset == state.start_offset and not state.batches
    return start_offset == UNINITIALIZED_START_OFFSET or is_unchanged


def _response_code(code: int) -> int:
    if code in UNAVAILABLE_ERRORS or code == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    return code


class ShareStatePartition:
    """The states of one partition while this broker leads it."""

    __slots__ = (
        "end_offset",
        "index",
        "leader_epoch",
        "pruned_offset",
        "snapshot_offsets",
        "states",
        "stored",
        "updates",
    )

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.stored = StoredRecords(SHARE_STATE_TOPIC, index, "the state of share groups", logger)
        self.states: dict[SharePartitionKey, ShareState] = {}
        #: How many updates follow the last snapshot.
        self.updates: dict[SharePartitionKey, int] = {}
        #: The offset of the last snapshot: the records of the key before it are not needed.
        self.snapshot_offsets: dict[SharePartitionKey, int] = {}
        #: The offset after the last record that was replayed.
        self.end_offset = 0
        #: Up to where records were deleted by this leader.
        self.pruned_offset = 0

    @property
    def needed_offset(self) -> int:
        """The first record that a share partition needs; the end if there is none."""
        return min(self.snapshot_offsets.values(), default=self.end_offset)

    def cold_keys(self, before_ms: int) -> list[SharePartitionKey]:
        """Keys without a snapshot since `before_ms` that keep records which no key needs.

        Each key needs one record, so there is nothing to gain as long as the log has no more than
        twice as many records from the snapshot on.
        """
        room = 2 * len(self.states)
        return [
            key
            for key, offset in self.snapshot_offsets.items()
            if self.end_offset - offset > room and self.states[key].write_timestamp_ms < before_ms
        ]

    def replay(self, record: StateRecord, offset: int) -> None:
        """Replay a record, after an append and while loading."""
        key = record.key
        self.end_offset = max(self.end_offset, offset + 1)
        if record.snapshot is not None:
            self.states[key] = record.snapshot
            self.updates[key] = 0
            self.snapshot_offsets[key] = offset
        elif record.update is not None:
            state = self.states.get(key)
            if state is not None:
                self.states[key] = state.updated(record.update)
                self.updates[key] += 1
        else:
            self.states.pop(key, None)
            self.updates.pop(key, None)
            self.snapshot_offsets.pop(key, None)

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        return self.stored.replay(chunks, self._replay_stored)

    def _replay_stored(self, stored: Record) -> None:
        record = None if stored.key is None else read_record(stored.key, stored.value)
        if record is not None:
            self.replay(record, stored.offset)

    @property
    def is_empty(self) -> bool:
        return not self.states and not self.stored.skipped

    def describe(self) -> str:
        return f"{len(self.states)} share partitions{self.stored.describe()}"


# Of keys and values in one batch: half of the default of `max.message.bytes`.
_MAX_BYTES = 1 << 19

_Row = tuple[int, bytes, bytes | None, None]


class _Waiting:
    """Records of one partition that are not appended yet."""

    __slots__ = ("results", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.results: list[AppendResult] = []
        self.size = 0


class RecordAppender:
    """Loop thread only. A partition that this broker has lost meanwhile gets no records."""

    def __init__(
        self,
        log: CoordinatorLog,
        clock: Clock,
        codec: int,
        is_active: Callable[[ShareStatePartition], bool],
        timer: DelayQueue,
        linger_ms: int,
    ) -> None:
        """With a linger time of 0 or less, records are appended at once."""
        self._log = log
        self._clock = clock
        self._codec = codec
        self._is_active = is_active
        self._timer = timer
        self._linger_ms = linger_ms
        self._waiting: dict[ShareStatePartition, _Waiting] = {}

    def append(
        self,
        partition: ShareStatePartition,
        key: bytes,
        value: bytes | None,
        on_result: AppendResult,
    ) -> None:
        """`on_result` is called with the error code and the offset of the record."""
        row = (self._clock.now_ms(), key, value, None)
        if self._linger_ms <= 0:
            self._log.append(partition.index, build_batch([row], codec=self._codec), on_result)
            return
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = _Waiting()
            mine = waiting
            self._timer.schedule(self._linger_ms, lambda: self._append_waiting(partition, mine))
        waiting.rows.append(row)
        waiting.results.append(on_result)
        waiting.size += len(key) + len(value or b"")
        if waiting.size >= _MAX_BYTES:
            self._append_waiting(partition, waiting)

    def _append_waiting(self, partition: ShareStatePartition, waiting: _Waiting) -> None:
        if self._waiting.get(partition) is not waiting:
            return  # it was large enough before the end of its time
        del self._waiting[partition]

        def on_result(error_code: int, base_offset: int) -> None:
            for index, each in enumerate(waiting.results):
                each(error_code, base_offset + index)

        if self._is_active(partition):
            batch = build_batch(waiting.rows, codec=self._codec)
            self._log.append(partition.index, batch, on_result)
        else:
            on_result(ErrorCode.NOT_COORDINATOR, -1)
