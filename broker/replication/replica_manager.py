"""The partitions of this broker: appends, reads, and requests that wait for them.

Mirrors `appendRecords` and `fetchMessages` of Kafka's `ReplicaManager`; LeaderAndIsr and
StopReplica are in `leader_and_isr`. Loop only: nothing here awaits, so an append, the advance of
the high watermark and the completion of delayed operations are one atomic step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.deferred_validation import DeferredValidation, ProduceEntry
from ottla.broker.replication.delayed_delete_records import DelayedDeleteRecords
from ottla.broker.replication.delayed_fetch import (
    DelayedFetch,
    FetchParams,
    PartitionKey,
    diverges,
    read_records,
)
from ottla.broker.replication.delayed_flush import (
    DelayedFlush,
    UnflushedRecords,
    respond_after_flush,
)
from ottla.broker.replication.delayed_produce import DelayedProduce, Waiting
from ottla.broker.replication.fetch_news import items_of, record_caught_up, record_fetch, with_news
from ottla.broker.replication.partition import Partition, PartitionContext
from ottla.broker.replication.refusal_log import RefusalLog
from ottla.broker.replication.throttles import holds_back
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from ottla.protocol.records.batch import MAGIC_POSITION
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import LogDirectoryOffline, OffsetInRemoteStorage
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation_budget import (
    DEFAULT_BUDGET,
    ValidationBudget,
    ValidationBudgetExceeded,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.replication.delayed_remote_fetch import RemoteFetches, RemoteStorageFetch
    from ottla.broker.replication.fetch_sessions import (
        FetchItem,
        FetchResult,
        SessionPartition,
    )
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.read_replica import RackAwareReplicaSelector
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.storage.log.log import Log
    from ottla.storage.producer.verification import Verification
    from ottla.storage.records.validation import ValidatedRecords

_CLIENT = AppendOrigin.CLIENT

# Errors of a client with outdated metadata: not logged.
_NOT_LOGGED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


class ReplicaManager:
    """Appends and reads for request handlers, coordinators and fetchers.

    Durability: records that were appended without an error are in the log file when the response is
    sent. They survive the end of this process; they survive the loss of the machine if they are
    replicated (acks=all) or flushed.
    """

    def __init__(
        self,
        context: PartitionContext,
        clock: Clock,
        timer: DelayQueue,
        metadata: MetadataCache,
        *,
        isr_manager: IsrManager | None,
        on_directory_failure: Callable[[str], None],
        on_truncated: Callable[[Log], None],
        deferred_validation: DeferredValidation | None,
        leader_throttle: ReplicationQuota | None = None,
        read_replica: RackAwareReplicaSelector | None = None,
        remote_logs: RemoteLogManager | None = None,
        purge_intervals: tuple[int, int] = (1000, 1000),
    ) -> None:
        """`purge_intervals` are those of the produce and the fetch purgatory.

        `deferred_validation` validates batches that take long in worker threads; None: all batches
        are validated on the event loop.
        """
        self.context = context
        self.partitions: dict[PartitionKey, Partition] = {}
        #: Replicas that could not start in a leader epoch for lack of disk space or descriptors.
        self.unstarted: set[TopicPartition] = set()
        self.isr_manager = isr_manager
        #: Called when a log directory failed during an append or a read.
        self.on_directory_failure = on_directory_failure
        #: Called when a follower has truncated its log.
        self.on_truncated = on_truncated
        #: Selects the read replica of consumers (KIP-392); None: they read from the leader.
        self.read_replica = read_replica
        #: Tiered storage (KIP-405); None where it is not enabled.
        self.remote_logs = remote_logs
        #: Throttles followers that are not in the ISR (KIP-73).
        self.leader_throttle = leader_throttle
        #: Fetches from remote storage; None without tiered storage.
        self.remote_fetches: RemoteFetches | None = None
        self._changed: dict[PartitionKey, None] | None = None  # while a session's fetch is read
        self._clock = clock
        self._metadata = metadata
        self._refusals = RefusalLog(context.now_ms)
        self._deferred_validation = deferred_validation
        # Of the current request: nothing awaits, so there is never more than one.
        self._budget = ValidationBudget()
        produce_interval, fetch_interval = purge_intervals
        self.produce_purgatory: Purgatory[DelayedFlush | DelayedProduce] = Purgatory(
            "produce", timer, purge_interval=produce_interval
        )
        self.fetch_purgatory: Purgatory[DelayedOperation] = Purgatory(
            "fetch", timer, purge_interval=fetch_interval
        )
        self.delete_records_purgatory: Purgatory[DelayedDeleteRecords] = Purgatory(
            "delete-records", timer
        )

    # -- partitions -----------------------------------------------------------------------------

    def forget_broker_epochs(self) -> None:
        """Accepts the next fetch of each follower whatever its broker epoch is."""
        for partition in self.partitions.values():
            for follower in partition.followers.values():
                follower.broker_epoch = UNKNOWN_BROKER_EPOCH

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, if it is online; raises the error for the client otherwise."""
        found = self.partitions.get((topic, index))
        if found is None:
            if self._metadata.snapshot.partition(topic, index) is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Partition {topic}-{index} does not exist.",
                )
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"This broker has no replica of {topic}-{index}.",
            )
        if found.offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {topic}-{index} is offline."
            )
        return found

    def remove_partition(self, key: TopicPartition) -> Partition | None:
        """The replica is gone from this broker, or was never there. Returns it, if it was."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.context.topics.remove_replica(partition.statistics)
        return partition

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
        """Appends to partitions that this broker leads and fills the responses of `entries`.

        Offsets and leader epoch are set in the given buffers. With acks -1 the callback runs when
        the records are committed, or after `timeout_ms` with REQUEST_TIMED_OUT; with 0 and 1 it
        runs at once, or when the flush that `flush.messages` requires has ended. `guards` are those
        of verified transactions. Batches of clients that take long to validate are appended later,
        after deferred validation; `validated` is its result, for a call with one entry.
        """
        now_ms = self._clock.now_ms()
        partitions = self.partitions
        waiting: list[Waiting] = []
        appended: list[Partition] = []
        deferred: list[ProduceEntry] = []
        unflushed: list[UnflushedRecords] = []
        budget = None
        if origin is _CLIENT and self._deferred_validation is not None:
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
                deferred.append(entry)
                continue
            except Exception as error:
                self.append_failed(topic, index, error, response)
                continue
            partition.after_append(log)
            appended.append(partition)
            statistics = partition.statistics
            statistics.produces += 1
            if not info.duplicate:
                statistics.received_bytes += info.bytes
                messages = info.last_offset - info.first_offset + 1
                statistics.received_messages += messages
                if records[MAGIC_POSITION] < 2:
                    statistics.produce_conversions += messages
            response.base_offset = info.first_offset
            response.log_append_time_ms = info.log_append_time
            response.log_start_offset = log.log_start_offset
            offsets, end_offset = log.offsets, info.last_offset + 1
            if offsets.flush_required and offsets.recovery_point < end_offset:
                failed, since = offsets.failed_flushes, partition.led_since
                unflushed.append(
                    UnflushedRecords(partition, since, offsets, end_offset, failed, response)
                )
            elif required_acks == -1 and offsets.high_watermark < end_offset:
                waiting.append((partition, partition.led_since, end_offset, response))
        for partition in appended:
            self.complete_delayed_requests(partition)
        if deferred:
            assert self._deferred_validation is not None
            callback = self._deferred_validation.start(
                self, required_acks, timeout_ms, deferred, callback, guards
            )
        if unflushed:
            respond_after_flush(
                self.produce_purgatory,
                required_acks,
                unflushed,
                waiting,
                lambda waiting: self._respond_after_replication(timeout_ms, waiting, callback),
            )
        elif waiting:
            self._respond_after_replication(timeout_ms, waiting, callback)
        else:
            callback()

    def _respond_after_replication(
        self, timeout_ms: int, waiting: list[Waiting], callback: Callable[[], None]
    ) -> None:
        """Calls back when the records are committed, or after `timeout_ms`."""
        if not waiting:
            callback()
            return
        operation = DelayedProduce(timeout_ms, waiting, callback)
        self.produce_purgatory.try_complete_else_watch(
            operation, [partition.key for partition, _, _, _ in waiting]
        )

    def complete_delayed_requests(self, partition: Partition) -> None:
        """Completes delayed fetches and produces: the log or its high watermark advanced."""
        key = partition.key
        if self._changed is not None:
            self._changed[key] = None
        self.fetch_purgatory.check_and_complete(key)
        self.produce_purgatory.check_and_complete(key)

    def complete_all_delayed_requests(self, partition: Partition) -> None:
        """As above, and delayed DeleteRecords: the leader changed, or the partition was stopped."""
        self.complete_delayed_requests(partition)
        self.delete_records_purgatory.check_and_complete(partition.key)
        if self.remote_fetches is not None:
            self.remote_fetches.purgatory.check_and_complete(partition.key)

    def append_failed(
        self, topic: str, index: int, error: Exception, response: PartitionProduceResponse
    ) -> None:
        """Sets the error in the response of a partition, and logs it."""
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
        if code not in _NOT_LOGGED:
            self.context.topics.count_failed_append(topic, code)
            self._refusals.log(topic, index, code, error)

    # -- reading --------------------------------------------------------------------------------

    def fetch_messages(
        self,
        params: FetchParams,
        items: list[FetchItem],
        callback: Callable[[list[FetchResult]], None],
    ) -> None:
        """Reads; waits up to `max_wait_ms` while there are fewer than `min_bytes`.

        The callback gets one result for each item, in their order, except for those that
        `params.only_news` leaves out. A fetch of a follower also updates its log end offset, and so
        the high watermark and the ISR: when it arrives, not again when it is completed.
        """
        remote, news = self.remote_fetches, None
        changed: dict[PartitionKey, None] | None = {} if params.only_news else None
        outer, self._changed = self._changed, changed
        try:
            if params.only_news:
                news = record_caught_up(self, params, items, self.context.now_ms())
            if news is None:
                results, size, immediate, moved = self.read(params, items)
        finally:
            self._changed = outer
        if news is None:
            if remote is not None and moved is not None:
                remote.start(moved, results, callback)
                return
            if immediate or not items or params.max_wait_ms <= 0 or size >= params.min_bytes:
                callback(results)
                return
            if changed is not None:
                news = [(topic, data.partition_index) for topic, _, data in results]
        waiting = items if remote is None else remote.local_items(items)
        positions = {(topic, position.partition): position for topic, _, position in waiting}

        def respond(news: Iterable[PartitionKey] | None) -> None:
            found = items if news is None else items_of(news, positions)
            # The state of the follower is that of its last fetch: this one may be older now.
            callback(self.read(params, found, records_progress=False)[0])

        # `changed`: what was completed here may have appended to a partition without news.
        if news is not None:
            news = [key for key in (*news, *(changed or ())) if key in positions]
        operation = DelayedFetch(params, positions, self.partitions.get, respond, news)
        if params.is_follower:
            operation.throttle = self.leader_throttle
        self.fetch_purgatory.try_complete_else_watch(operation, positions)

    def read(
        self,
        params: FetchParams,
        items: Iterable[FetchItem],
        *,
        records_progress: bool = True,
        size: int = 0,
        moved: RemoteStorageFetch | None = None,
    ) -> tuple[list[FetchResult], int, bool, RemoteStorageFetch | None]:
        """(one result for each item, their bytes, whether the response is sent without delay, what
        is read from remote storage before: one partition of a request).

        Each item, in their order, gets up to its own limit from what is left of the request's
        limit. The first batch is always complete, even if it is larger (KIP-74). `size` and `moved`
        are those of the request's items before these.
        """
        left = max(params.max_bytes - size, 0)
        immediate = False
        results: list[FetchResult] = []
        # Once for all partitions, of which a follower fetches thousands.
        now_ms = None
        is_follower = params.replica_id >= 0
        if records_progress and is_follower:
            now_ms = self.context.now_ms()
        if params.only_news:
            settled = cast("Iterable[tuple[str | None, bytes, SessionPartition]]", items)
            items = with_news(settled, self.partitions.get, params, now_ms)
        for item in items:
            topic, topic_id, position = item
            # Null, not empty: only readers with READ_COMMITTED get a list.
            data = PartitionData(position.partition, aborted_transactions=None)
            try:
                taken = self._read_partition(
                    params, item, data, left, is_first=size == 0, now_ms=now_ms
                )
                if data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                    immediate = True
            except Exception as error:
                taken, remote = 0, self.remote_fetches
                if not isinstance(error, OffsetInRemoteStorage) or remote is None:
                    self._read_failed(error, data)
                    immediate = True
                elif is_follower:
                    remote.tell_follower(data)
                    immediate = True
                elif moved is None:
                    most = min(position.partition_max_bytes, left)
                    moved = remote.moved(params, item, data, most, is_first=size == 0)
                    left -= 0 if moved is None else most
            size += taken
            left = left - taken if left > taken else 0
            results.append((topic, topic_id, data))
        return results, size, immediate, moved

    def _read_partition(
        self,
        params: FetchParams,
        item: FetchItem,
        data: PartitionData,
        left: int,
        *,
        is_first: bool,
        now_ms: int | None,
    ) -> int:
        """Fills `data` from one partition; returns the number of bytes.

        `now_ms`: None if the fetch says nothing about the follower now.
        """
        topic, topic_id, position = item
        partition = self.partitions.get((topic, position.partition))
        if partition is None or partition.offline:
            partition = self.partition(topic or "", position.partition)
        if topic_id != partition.topic_id:
            partition.check_topic_id(topic_id)
        log = partition.log_for(position.current_leader_epoch, params.leader_only)
        follower = None
        if params.replica_id >= 0:
            follower = partition.follower(
                params.replica_id, position.current_leader_epoch, params.replica_epoch
            )
        offsets = log.offsets
        # From before the read: a later append does not make the follower lag.
        end_offset = offsets.log_end_offset
        data.high_watermark = offsets.high_watermark
        data.last_stable_offset = offsets.last_stable_offset
        data.log_start_offset = offsets.log_start_offset
        data.records = b""
        if position.last_fetched_epoch >= 0 and diverges(partition, log, position, data):
            return 0
        if follower is None and self.read_replica is not None and partition.is_leader:
            preferred = self.read_replica.choose(
                partition, params.client_rack, position.fetch_offset
            )
            if preferred >= 0:
                data.preferred_read_replica = preferred
                return 0
        taken = 0
        # Most partitions of a follower's fetch have nothing new.
        if follower is None or position.fetch_offset != end_offset:
            taken = read_records(log, params, position, data, left, is_first)
        if taken and follower is not None and (quota := self.leader_throttle) is not None:
            if holds_back(quota, follower.broker_id, partition):
                taken, data.records = 0, b""
            elif quota.is_throttled(partition.topic, partition.index):
                quota.record(taken, self.context.now_ms())
        if follower is not None and now_ms is not None:
            record_fetch(self, params, partition, follower, position, end_offset, now_ms)
        return taken

    def _read_failed(self, error: Exception, data: PartitionData) -> None:
        data.error_code = error_code(error)
        data.high_watermark = -1
        data.last_stable_offset = -1
        data.log_start_offset = -1
        data.records = b""
        if isinstance(error, LogDirectoryOffline):
            self.on_directory_failure(error.directory)

    def log_of(self, key: TopicPartition) -> Log | None:
        """The local log of a partition, or None."""
        partition = self.partitions.get(key)
        return None if partition is None else partition.log
