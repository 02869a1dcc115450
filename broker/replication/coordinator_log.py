"""The log of a coordinator (`ottla.broker.coordination.ports`) on the replica manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import AppendResult
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.records.batch import NO_SEQUENCE
from ottla.protocol.topics import TopicPartition
from ottla.storage.producer.producer_entry import AppendOrigin

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.producer.verification import Verification

logger = logging.getLogger("ottla.coordinators")

_ALL = -1


class ReplicatedCoordinatorLog:
    """An internal topic; appends are acknowledged by all in-sync replicas (acks=all)."""

    def __init__(
        self, replica_manager: ReplicaManager, topic: str, timeout_ms: Callable[[], int]
    ) -> None:
        """`timeout_ms` returns the limit for an append (`offsets.commit.timeout.ms`)."""
        self._replica_manager = replica_manager
        self._topic = topic
        self._timeout_ms = timeout_ms

    def append(
        self,
        partition: int,
        batch: bytes,
        on_result: AppendResult,
        guard: Verification | None = None,
    ) -> None:
        """See `CoordinatorLog.append`."""
        response = PartitionProduceResponse(partition, 0, -1)

        def done() -> None:
            failed = response.error_code != ErrorCode.NONE
            on_result(response.error_code, -1 if failed else response.base_offset)

        self._replica_manager.append_records(
            _ALL,
            self._timeout_ms(),
            [(self._topic, partition, bytearray(batch), response)],
            done,
            AppendOrigin.COORDINATOR,
            None if guard is None else {(self._topic, partition): guard},
        )

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, now_ms: int
    ) -> Verification | None:
        """See `CoordinatorLog`; None as well when this broker is not the leader (any more)."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        if log is None or log.producer_state.has_open_transaction(producer_id, producer_epoch):
            return None
        if not log.verifications.enabled:
            return None
        return log.verifications.begin(producer_id, producer_epoch, NO_SEQUENCE, now_ms)

    def is_valid(self, partition: int, guard: Verification) -> bool:
        """See `CoordinatorLog`; True as well when this broker is not the leader (any more)."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        return log is None or log.verifications.allows(guard.producer_id, guard)

    def log_end_offset(self, partition: int) -> int:
        """See `CoordinatorLog.log_end_offset`."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        return 0 if log is None else log.log_end_offset

    def segment_end_offset(self, partition: int, offset: int) -> int:
        """See `CoordinatorLog.segment_end_offset`."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        if log is None:
            return 0
        following = (each.base_offset for each in log.segments if each.base_offset > offset)
        return min(following, default=log.log_end_offset)

    def roll_segment(self, partition: int, now_ms: int) -> None:
        """See `CoordinatorLog.roll_segment`."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        if log is None:
            return
        try:
            log.roll(now_ms)
        except Exception as problem:  # DiskFull, or the damage is where the segment begins
            logger.warning("Failed to roll a segment of %s-%d: %s", self._topic, partition, problem)

    def read_batches(self, partition: int, from_offset: int = 0) -> Iterator[memoryview]:
        """See `CoordinatorLog.read_batches`."""
        log = self._replica_manager.log_of(TopicPartition(self._topic, partition))
        return iter(()) if log is None else log.batches(max(from_offset, log.log_start_offset))
