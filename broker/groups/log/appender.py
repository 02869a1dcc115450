"""Appends to `__consumer_offsets`: builds the batch and maps the errors of the log."""

from collections.abc import Callable, Sequence

from ottla.broker.coordination.ports import (
    MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    UNAVAILABLE_ERRORS,
    AppendResult,
    CoordinatorLog,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.log.partitions import GroupPartitions
from ottla.broker.groups.log.records import group_key, group_value
from ottla.broker.runtime.clock import Clock
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import NONE
from ottla.storage.producer.verification import Verification

# Tombstones are split into batches of about this size, far below a usual max.message.bytes.
MAX_TOMBSTONE_BATCH_BYTES = 256 * 1024

Results = Callable[[int, int], None]


class GroupAppender:
    """Appends records of groups whose partition is active here."""

    def __init__(
        self, log: CoordinatorLog, partitions: GroupPartitions, clock: Clock, codec: int = NONE
    ) -> None:
        """`codec` is that of each batch, tombstones included: offsets.topic.compression.codec."""
        self._codec = codec
        self._log = log
        self._partitions = partitions
        self._clock = clock

    def append(
        self,
        partition: GroupPartition,
        records: Sequence[tuple[bytes, bytes | None]],
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

    def begin_verification(
        self, partition: GroupPartition, producer_id: int, producer_epoch: int
    ) -> Verification | None:
        """The guard for a batch that would start a transaction; None when it needs none."""
        return self._log.begin_verification(
            partition.index, producer_id, producer_epoch, self._clock.now_ms()
        )

    def append_tombstones(
        self, partition: GroupPartition, keys: Sequence[bytes], on_result: AppendResult
    ) -> None:
        """Appends tombstones in as many batches as needed.

        `on_result` runs once, when all batches have completed, with the first error and the base
        offset of the last batch.
        """
        batches = _batches_of(keys)
        left = len(batches)
        first_error = ErrorCode.NONE

        def on_append(error_code: int, base_offset: int) -> None:
            nonlocal left, first_error
            left -= 1
            first_error = first_error or error_code
            if left == 0:
                on_result(first_error, base_offset)

        for batch in batches:
            self.append(partition, [(key, None) for key in batch], on_append)

    def store_group(
        self, group: Group, assignments: dict[str, bytes], on_result: Callable[[int], None]
    ) -> None:
        """Appends the record of a classic group; the result is an error code for members."""
        partition = self._partitions.home_of(group.group_id)
        if partition is None:
            on_result(ErrorCode.NOT_COORDINATOR)
            return
        records = [(group_key(group.group_id), group_value(group, assignments))]
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
    """Maps the error of an append to one for clients that commit offsets."""
    if error_code == ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error_code in UNAVAILABLE_ERRORS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code in MOVED_ERRORS:
        return ErrorCode.NOT_COORDINATOR
    if error_code in TOO_LARGE_ERRORS:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error_code
