"""The partitions hosted by this broker: appending to them, reading them, waiting on them.

Mirrors the data half of Kafka's `ReplicaManager`; who leads what is `role_changes`. Loop only:
nothing here awaits, so an append, the high watermark that follows and the fetches that it wakes
are one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.delayed_delete_records import DelayedDeleteRecords
from ottla.broker.replication.delayed_fetch import DelayedFetch, FetchParams, read_bound
from ottla.broker.replication.delayed_produce import DelayedProduce
from ottla.broker.replication.partition import READ_COMMITTED, Partition, PartitionContext
from ottla.broker.requests.error_map import error_code, error_message
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from ottla.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import LogDirectoryOffline, OffsetOutOfRange
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation_budget import (
    DEFAULT_BUDGET,
    ValidationBudget,
    ValidationBudgetExceeded,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.replication.deferred_validation import DeferredValidation
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchPosition, FetchResult
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.read_replica import RackAwareSelector
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.storage.log.log import Log
    from ottla.storage.producer.verification import Verification
    from ottla.storage.records.validation import ValidatedRecords

logger = logging.getLogger("ottla.replication")

_CLIENT = AppendOrigin.CLIENT

# One partition of a produce request: topic, index, what to append, and the answer to fill.
ProduceEntry = tuple[str, int, bytearray | memoryview, PartitionProduceResponse]
PartitionKey = tuple[str | None, int]

# What a client did wrong in an append is its own business; what the disk did is ours.
_UNREMARKABLE = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

# How long the same refusal is not logged again, and how many are remembered for that.
_REFUSAL_QUIET_MS = 10_000
_MAX_REFUSALS_TOLD = 1_000


class ReplicaManager:
    """Appends and reads for request handlers, coordinators and fetchers."""

    def __init__(
        self,
        context: PartitionContext,
        clock: Clock,
        timer: DelayQueue,
        metadata: MetadataCache,
        purge_intervals: tuple[int, int] = (1000, 1000),
        deferred_validation: DeferredValidation | None = None,
    ) -> None:
        """`purge_intervals` are those of the produce and the fetch purgatory.

        `examination`: where records are looked at that take long; None: at once, whatever it takes.
        """
        self.context = context
        self.partitions: dict[PartitionKey, Partition] = {}
        self.isr_manager: IsrManager | None = None
        #: Told once when a log directory failed during an append or a read.
        self.on_directory_failure: Callable[[str], None] = lambda directory: None
        #: Told when a follower has cut its log.
        self.on_truncated: Callable[[Log], None] = lambda log: None
        #: Chooses another replica for consumers (KIP-392); None: they read from the leader.
        self.read_replica: RackAwareSelector | None = None
        #: Holds back followers that are not in sync (KIP-73).
        self.leader_throttle: ReplicationQuota | None = None
        self._clock = clock
        self._metadata = metadata
        self._refusals_told: dict[tuple[str, int, int], int] = {}
        self._examination = deferred_validation
        # Of the request that is served now: nothing awaits, so there is never more than one.
        self._budget = ValidationBudget()
        produce_interval, fetch_interval = purge_intervals
        self.produce_purgatory: Purgatory[DelayedProduce] = Purgatory(
            "produce", timer, purge_interval=produce_interval
        )
        self.fetch_purgatory: Purgatory[DelayedFetch] = Purgatory(
            "fetch", timer, purge_interval=fetch_interval
        )
        self.delete_records_purgatory: Purgatory[DelayedDeleteRecords] = Purgatory(
            "delete-records", timer
        )

    # -- finding --------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """A hosted partition that is online; else the error that the client is to get."""
        found = self.partitions.get((topic, index))
        if found is None:
            if self._metadata.snapshot.partition(topic, index) is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}."
                )
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"This broker holds no replica of {topic}-{index}.",
            )
        if found.offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The disk of {topic}-{index} is offline."
            )
        return found

    def led_partitions(self) -> list[Partition]:
        """The partitions that this broker leads."""
        return [partition for partition in self.partitions.values() if partition.is_leader]

    # -- writing --------------------------------------------------------------------------------

    def append_records(
        self,
        required_acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guards: Mapping[tuple[str, int], Verification] | None = None,
        validated: ValidatedRecords | None = None,
    ) -> None:
        """Appends to partitions led here and fills the entries' responses; calls back when done.

        The records are written into in place (offsets, leader epoch). With acks -1 the callback
        comes when the records are committed, or after `timeout_ms` with REQUEST_TIMED_OUT; with 0
        and 1 it comes at once. `guards` are those of verified transactions. Records of clients that
        take long to look at are appended later, after they were looked at in a worker thread;
        `validated` is what came of that for the only entry there is.

        What is answered without an error is in the log's file: it outlives this process, and
        outlives the machine when other replicas or a flush have it.
        """
        now_ms = self._clock.now_ms()
        partitions = self.partitions
        waiting: list[tuple[Partition, int, PartitionProduceResponse]] = []
        touched: list[Partition] = []
        later: list[ProduceEntry] = []
        budget = None
        if origin is _CLIENT and self._examination is not None:
            budget = self._budget
            budget.left = DEFAULT_BUDGET
        for entry in entries:
            topic, index, records, response = entry
            try:
                partition = partitions.get((topic, index)) or self.partition(topic, index)
                log = partition.leader_log()
                if required_acks == -1:
                    partition.check_enough_in_sync()
                verification = None if guards is None else guards.get((topic, index))
                if validated is None:
                    info = log.append(
                        records,
                        leader_epoch=partition.leader_epoch,
                        now_ms=now_ms,
                        origin=origin,
                        verification=verification,
                        budget=budget,
                    )
                else:
                    info = log.append_validated(
                        validated,
                        leader_epoch=partition.leader_epoch,
                        now_ms=now_ms,
                        verification=verification,
                    )
            except ValidationBudgetExceeded:
                later.append(entry)
                continue
            except Exception as error:
                self.append_failed(topic, index, error, response)
                continue
            partition.after_append(log)
            touched.append(partition)
            response.base_offset = info.first_offset
            response.log_append_time_ms = info.log_append_time
            response.log_start_offset = log.log_start_offset
            if required_acks == -1 and log.high_watermark <= info.last_offset:
                waiting.append((partition, info.last_offset + 1, response))
        for partition in touched:
            self.complete_delayed_requests(partition)
        if later:
            assert self._examination is not None
            callback = self._examination.start(
                self, required_acks, timeout_ms, later, callback, guards
            )
        if not waiting:
            callback()
            return
        operation = DelayedProduce(timeout_ms, waiting, callback)
        self.produce_purgatory.try_complete_else_watch(
            operation, [partition.key for partition, _, _ in waiting]
        )

    def complete_delayed_requests(self, partition: Partition) -> None:
        """Lets whoever waits on `partition` look again: its log or its watermark moved."""
        key = partition.key
        self.fetch_purgatory.check_and_complete(key)
        self.produce_purgatory.check_and_complete(key)

    def wake_all(self, partition: Partition) -> None:
        """As `wake`, when the role of this broker changed, or the partition is no more."""
        self.complete_delayed_requests(partition)
        self.delete_records_purgatory.check_and_complete(partition.key)

    def append_failed(
        self, topic: str, index: int, error: Exception, response: PartitionProduceResponse
    ) -> None:
        """Puts an error into the answer for a partition, and one line into the log."""
        code = error_code(error)
        response.error_code = code
        response.error_message = error_message(error)
        if isinstance(error, InvalidRecordError):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index, message)
                for batch_index, message in error.record_errors
            ]
            partition = self.partitions.get(TopicPartition(topic, index))
            if error.record_errors and partition is not None and partition.log is not None:
                response.log_start_offset = partition.log.log_start_offset
        if isinstance(error, LogDirectoryOffline):
            self.on_directory_failure(error.directory)
        if code not in _UNREMARKABLE:
            self._log_refusal(topic, index, code, error)

    def _log_refusal(self, topic: str, index: int, code: int, error: Exception) -> None:
        """One line for each partition and reason in a while: clients try again, and again."""
        now_ms = self.context.now_ms()
        if len(self._refusals_told) >= _MAX_REFUSALS_TOLD:
            self._refusals_told.clear()
        key = (topic, index, code)
        if now_ms - self._refusals_told.get(key, -_REFUSAL_QUIET_MS) >= _REFUSAL_QUIET_MS:
            self._refusals_told[key] = now_ms
            logger.info(
                "append to %s-%d refused: %s",
                topic,
                index,
                error,
                extra={"topic": topic, "partition": index},
            )

    # -- reading --------------------------------------------------------------------------------

    def fetch_messages(
        self,
        params: FetchParams,
        items: list[FetchItem],
        callback: Callable[[list[FetchResult]], None],
    ) -> None:
        """Reads what there is; waits up to `max_wait_ms` while it is less than `min_bytes`.

        The callback gets one result per item, in their order. A follower's fetch also tells how far
        it has come.
        """
        results, size, urgent = self.read(params, items)
        if urgent or not items or params.max_wait_ms <= 0 or size >= params.min_bytes:
            callback(results)
            return
        operation = DelayedFetch(
            params,
            items,
            self.partitions.get,
            lambda: callback(self.read(params, items)[0]),
        )
        self.fetch_purgatory.try_complete_else_watch(
            operation, [(topic, position.partition) for topic, _, position in items]
        )

    def read(
        self, params: FetchParams, items: Iterable[FetchItem]
    ) -> tuple[list[FetchResult], int, bool]:
        """(one result per item, their bytes, whether one of them must be answered at once).

        The bytes are shared out in the order of the items: each takes up to its own limit from
        what is left of the request's. The first batch there is comes whole, however large.
        """
        left = params.max_bytes
        size = 0
        urgent = False
        results: list[FetchResult] = []
        for item in items:
            topic, topic_id, position = item
            # Null, not empty: only readers of committed data are told.
            data = PartitionData(position.partition, aborted_transactions=None)
            try:
                taken = self._read_partition(params, topic, position, data, left, size == 0)
                if data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                    urgent = True
            except Exception as error:
                self._read_failed(error, data)
                taken = 0
                urgent = True
            size += taken
            left = left - taken if left > taken else 0
            results.append((topic, topic_id, data))
        return results, size, urgent

    def _read_partition(
        self,
        params: FetchParams,
        topic: str | None,
        position: FetchPosition,
        data: PartitionData,
        left: int,
        is_first: bool,
    ) -> int:
        """Fills `data` from one partition; returns the number of bytes."""
        partition = self.partitions.get((topic, position.partition))
        if partition is None or partition.offline:
            partition = self.partition(topic or "", position.partition)
        log = partition.log_for(position.current_leader_epoch, params.leader_only)
        follower = None
        if params.is_follower:
            follower = partition.follower(params.replica_id, position.current_leader_epoch)
        # What holds before the read: an append that comes later does not make the reader slow.
        end_offset = log.log_end_offset
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        data.records = b""
        if position.last_fetched_epoch >= 0 and _diverges(partition, log, position, data):
            return 0
        if follower is None and self.read_replica is not None and partition.is_leader:
            preferred = self.read_replica.choose(
                partition, params.client_rack, position.fetch_offset
            )
            if preferred >= 0:
                data.preferred_read_replica = preferred
                return 0
        limit = min(position.partition_max_bytes, left)
        read = log.read(
            position.fetch_offset,
            limit,
            up_to=read_bound(log, params.isolation),
            min_one_batch=is_first and not params.hard_limit,
            read_committed=params.isolation == READ_COMMITTED,
        )
        if params.isolation == READ_COMMITTED:
            data.aborted_transactions = [
                AbortedTransaction(producer_id, first_offset)
                for producer_id, first_offset in read.aborted_transactions
            ]
        taken = 0
        if read.slice is not None and not (
            follower is not None and self._holds_back(partition, follower.broker_id)
        ):
            data.records = read.slice
            taken = len(read.slice)
        if follower is not None:
            self._record_copied(partition, taken)
            follower.broker_epoch = params.replica_epoch
            before = follower.log_end_offset
            start_before = follower.log_start_offset
            follower.record_fetch(
                position.fetch_offset, position.log_start_offset, end_offset, self.context.now_ms()
            )
            self._follower_moved(partition, follower.broker_id, before)
            if follower.log_start_offset != start_before:
                self.delete_records_purgatory.check_and_complete(partition.key)
        return taken

    def _holds_back(self, partition: Partition, broker_id: int) -> bool:
        """Whether a follower that is not in sync gets nothing now, because of a throttle."""
        throttle = self.leader_throttle
        return (
            throttle is not None
            and broker_id not in partition.isr
            and throttle.is_throttled(partition.topic, partition.index)
            and throttle.is_exceeded(self.context.now_ms())
        )

    def _record_copied(self, partition: Partition, size: int) -> None:
        throttle = self.leader_throttle
        if (
            throttle is not None
            and size
            and throttle.is_throttled(partition.topic, partition.index)
        ):
            throttle.record(size, self.context.now_ms())

    def _follower_moved(self, partition: Partition, broker_id: int, before: int) -> None:
        follower = partition.followers[broker_id]
        if self.isr_manager is not None and broker_id not in partition.maximal_isr:
            self.isr_manager.maybe_expand(partition, follower)
        moved = follower.log_end_offset != before
        if moved and partition.maybe_increment_high_watermark():
            self.complete_delayed_requests(partition)

    def _read_failed(self, error: Exception, data: PartitionData) -> None:
        data.error_code = error_code(error)
        data.high_watermark = -1
        data.last_stable_offset = -1
        data.log_start_offset = -1
        data.records = b""
        if isinstance(error, LogDirectoryOffline):
            self.on_directory_failure(error.directory)

    def log_of(self, key: TopicPartition) -> Log | None:
        """The local log of a hosted partition, or None."""
        partition = self.partitions.get(key)
        return None if partition is None else partition.log


def _diverges(partition: Partition, log: Log, position: FetchPosition, data: PartitionData) -> bool:
    """Whether the reader's last epoch ends elsewhere here (KIP-595); notes where in `data`."""
    epoch, end_offset = partition.end_offset_for_epoch(log, position.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or position.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(
            str(partition.key), position.fetch_offset, log.log_start_offset, log.log_end_offset
        )
    if epoch < position.last_fetched_epoch or end_offset < position.fetch_offset:
        data.diverging_epoch = EpochEndOffset(epoch, end_offset)
        return True
    return False
