"""Appends to `__consumer_offsets`: builds the batch and maps the errors of the log."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ottla.broker.coordination.ports import (
    IN_LOG_ERRORS,
    MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    UNAVAILABLE_ERRORS,
    AppendResult,
    CoordinatorLog,
    Defer,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.log.loader import replay_record
from ottla.broker.groups.log.partition import GroupPartition, GroupPartitions
from ottla.broker.groups.log.records import group_key, group_value
from ottla.broker.groups.offsets import AFTER_ALL
from ottla.broker.runtime.clock import Clock
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import NONE
from ottla.protocol.steps import Steps, run_at_once
from ottla.storage.producer.verification import Verification

logger = logging.getLogger("ottla.groups")

# Tombstones are split into batches of about this size, far below a usual max.message.bytes.
MAX_TOMBSTONE_BATCH_BYTES = 256 * 1024

# Changes that are appended as one batch: their responses take about two milliseconds, and a batch
# that is not larger than this is rarely rejected for its size.
MAX_GATHERED = 64
MAX_GATHERED_BYTES = 64 * 1024

Records = Sequence[tuple[bytes, bytes | None]]


class _Gathered(NamedTuple):
    """Records that wait for the batch of this iteration of the loop."""

    partition: GroupPartition
    records: Records
    on_result: AppendResult
    size: int


class GroupAppender:
    """Appends records of groups whose partition is active here."""

    def __init__(
        self,
        log: CoordinatorLog,
        partitions: GroupPartitions,
        clock: Clock,
        defer: Defer,
        codec: int = NONE,
    ) -> None:
        """`codec` is that of each batch, tombstones included: offsets.topic.compression.codec."""
        self._codec = codec
        self._log = log
        self._partitions = partitions
        self._clock = clock
        self._defer = defer
        # By partition, in the order of the calls; not more than there are requests in a turn.
        self._gathered: dict[int, deque[_Gathered]] = {}
        self._is_deferred = False

    def append_together(
        self, partition: GroupPartition, records: Records, on_result: AppendResult
    ) -> None:
        """As `append`, in one batch with what is appended to the partition in the same iteration of
        the loop: an append costs as much as the rest of a commit. The order of appends is kept. The
        base sequence is 0, as in the batches of offsets of Kafka.
        """
        size = 0
        for key, value in records:
            size += len(key) + (0 if value is None else len(value))
        gathered = self._gathered.get(partition.index)
        if gathered is None:
            gathered = self._gathered[partition.index] = deque()
        gathered.append(_Gathered(partition, records, on_result, size))
        self._defer_gathered()

    def _defer_gathered(self) -> None:
        if not self._is_deferred:
            self._is_deferred = True
            self._defer(self._append_gathered)

    def _append_gathered(self) -> None:
        """Append one batch to each partition, and the rest in the next iteration."""
        self._is_deferred = False
        for index in list(self._gathered):
            self._append_batch_of(index)
        if self._gathered:
            self._defer_gathered()

    def _append_batch_of(self, index: int) -> None:
        gathered = self._gathered.get(index)
        if gathered is None:
            return  # a callback has appended it meanwhile
        changes = [gathered.popleft()]
        size = changes[0].size
        while (
            gathered
            and len(changes) < MAX_GATHERED
            and size + gathered[0].size <= MAX_GATHERED_BYTES
            and gathered[0].partition is changes[0].partition
        ):
            changes.append(gathered.popleft())
            size += changes[-1].size
        if not gathered:
            del self._gathered[index]
        self._append_changes(changes)

    def _append_changes(self, changes: list[_Gathered]) -> None:
        partition = changes[0].partition
        if not self._partitions.is_active(partition):
            for change in changes:
                change.on_result(ErrorCode.NOT_COORDINATOR, -1)
            return
        if len(changes) == 1:
            self._append(partition, changes[0].records, changes[0].on_result, base_sequence=0)
            return

        def on_result(error_code: int, base_offset: int) -> None:
            if error_code in TOO_LARGE_ERRORS:
                for change in changes:  # each of them may be small enough
                    self._append(partition, change.records, change.on_result, base_sequence=0)
                return
            for change in changes:
                try:
                    change.on_result(error_code, base_offset)
                except Exception:
                    # A defect, and the others of the batch still need their responses.
                    logger.exception("Unexpected error completing an append of a group")
                if not error_code:
                    base_offset += len(change.records)

        records = [record for change in changes for record in change.records]
        self._append(partition, records, on_result, base_sequence=0)

    def append(
        self,
        partition: GroupPartition,
        records: Records,
        on_result: AppendResult,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        guard: Verification | None = None,
    ) -> None:
        """Append key and value pairs as one batch; transactional when there is a producer id.

        When this broker resigned from the partition meanwhile, the result is NOT_COORDINATOR. The
        record may be committed; then the new coordinator replays it.
        """
        while partition.index in self._gathered:
            self._append_batch_of(partition.index)
        self._append(
            partition, records, on_result, producer_id, producer_epoch, base_sequence, guard
        )

    def _append(
        self,
        partition: GroupPartition,
        records: Records,
        on_result: AppendResult,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        guard: Verification | None = None,
    ) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [(now_ms, key, value, None) for key, value in records],
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=producer_id >= 0,
        )

        def on_append(error_code: int, base_offset: int) -> None:
            if not self._partitions.is_active(partition):
                error_code = ErrorCode.NOT_COORDINATOR
            on_result(error_code, base_offset)

        self._log.append(partition.index, batch, on_append, guard)

    def end_offset(self, partition: GroupPartition) -> int:
        """Return the log end offset after all that was to be appended before."""
        while partition.index in self._gathered:
            self._append_batch_of(partition.index)
        return self._log.log_end_offset(partition.index)

    def begin_verification(
        self, partition: GroupPartition, producer_id: int, producer_epoch: int
    ) -> Verification | None:
        """Return the guard for a batch that would start a transaction; None when it needs none."""
        return self._log.begin_verification(
            partition.index, producer_id, producer_epoch, self._clock.now_ms()
        )

    def is_valid(self, partition: GroupPartition, guard: Verification) -> bool:
        """Whether no marker has been appended since the verification began."""
        return self._log.is_valid(partition.index, guard)

    def append_tombstones(
        self, partition: GroupPartition, keys: Sequence[bytes], on_result: Callable[[int], None]
    ) -> None:
        """Append tombstones in as many batches as needed, and replay those that are in the log: a
        part of them may fail, or be committed late.

        `on_result` runs once, when all batches have completed, with an error of a batch that is not
        in the log, or else one of `IN_LOG_ERRORS` or 0.
        """
        run_at_once(self.append_tombstone_batches(partition, _batches_of(keys), on_result))

    def append_tombstone_batches(
        self,
        partition: GroupPartition,
        batches: Iterable[list[bytes]],
        on_result: Callable[[int], None],
    ) -> Steps[None]:
        """As `append_tombstones`, with a pause after a batch; empty ones are left out.

        In a pause nothing else may be stored with these keys.
        """
        left = 1  # until the last batch is known
        result: int = ErrorCode.NONE

        def complete_one() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                on_result(result)

        def on_append(batch: list[bytes], error_code: int, base_offset: int) -> None:
            nonlocal result
            is_late = error_code in IN_LOG_ERRORS
            if is_late or not error_code:
                at = AFTER_ALL if is_late else base_offset
                for key in batch:
                    replay_record(partition, key, None, at, None, self._clock.now_ms)
            if not result or (error_code and not is_late):
                result = error_code
            complete_one()

        for batch in filter(None, batches):
            if not self._partitions.is_active(partition):  # since the pause
                result = ErrorCode.NOT_COORDINATOR
                break
            left += 1
            self.append(partition, [(key, None) for key in batch], partial(on_append, batch))
            yield
        complete_one()

    def store_group(
        self, group: Group, assignments: dict[str, bytes], on_result: Callable[[int], None]
    ) -> None:
        """Append the record of a classic group; the result is an error code for members."""
        partition = self._partitions.home_of(group.group_id)
        if partition is None:
            on_result(ErrorCode.NOT_COORDINATOR)
            return
        # At once: the group must not change before its record is appended.
        value = run_at_once(group_value(group, assignments))
        records = [(group_key(group.group_id), value)]
        self.append(partition, records, lambda error, _: on_result(_group_error(error)))


def _batches_of(keys: Sequence[bytes]) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    size = 0
    for key in keys:
        if size + len(key) > MAX_TOMBSTONE_BATCH_BYTES and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append(key)
        size += len(key)
    return batches


def _group_error(error_code: int) -> int:
    if error_code in UNAVAILABLE_ERRORS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error_code == ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if error_code in TOO_LARGE_ERRORS:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error_code


def offset_error(error_code: int) -> int:
    """Map the error of an append to one for clients that commit offsets."""
    if error_code == ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error_code in UNAVAILABLE_ERRORS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error_code in TOO_LARGE_ERRORS:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error_code
