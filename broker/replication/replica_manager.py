"""The partitions of this broker: appends, reads, and requests that wait for them.

Mirrors `appendRecords` and `fetchMessages` of Kafka's `ReplicaManager`; LeaderAndIsr and
StopReplica are in `leader_and_isr`. Loop only. In one partition nothing pauses, so its append and
the advance of its high watermark are one step, and so are its read and a follower's progress;
requests of many partitions may pause between two of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.deferred_validation import DeferredValidation, ProduceEntry
from ottla.broker.replication.delayed_fetch import (
    DelayedFetch,
    FetchParams,
    diverges,
    read_records,
    with_news,
)
from ottla.broker.replication.delayed_writes import (
    DelayedDeleteRecords,
    DelayedFlush,
    DelayedProduce,
    UnflushedRecords,
    Waiting,
    respond_after_flush,
)
from ottla.broker.replication.partition import Partition, PartitionContext
from ottla.broker.replication.session_watch import MAX_SCAN_INTERVAL_MS, SessionWatches
from ottla.broker.replication.throttles import holds_back
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from ottla.protocol.records.batch import MAGIC_POSITION
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
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
        FetchSession,
        PartitionKey,
    )
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.partition import FollowerReplica, RackAwareReplicaSelector
    from ottla.broker.replication.session_watch import SessionWatch
    from ottla.broker.replication.standstill import StandstillGuard
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.storage.log.log import Log
    from ottla.storage.log.log_offsets import LogOffsets
    from ottla.storage.producer.verification import Verification
    from ottla.storage.records.validation import ValidatedRecords


logger = logging.getLogger("ottla.replication")

_CLIENT = AppendOrigin.CLIENT
_UNLIMITED = 1 << 60  # a budget

# Errors of a client with outdated metadata: not logged.
_NOT_LOGGED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

# How long the same refusal is not logged again, as clients retry, and for how many that is tracked.
_INTERVAL_MS = 10_000
_MAX_TRACKED = 1_000
# In the place of an error code: a read.
_READ = -2


# A follower waits for news for a part of the time after which it would lag too much, or would
# take the leader for dead.
_SHARE_OF_TIMEOUT = 4

# Of the partitions of a fetch: the results, their bytes, whether the response is sent at once, and
# the partition that is read from remote storage before, one of a request.
ReadResults = tuple["list[FetchResult]", int, bool, "RemoteStorageFetch | None"]


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
        socket_timeout_ms: int = 30_000,
    ) -> None:
        """`purge_intervals` are those of the produce and the fetch purgatory.

        `socket_timeout_ms` is `replica.socket.timeout.ms`, which followers have as well.

        `deferred_validation` validates batches that take long in worker threads; None: all batches
        are validated on the event loop.
        """
        self.context = context
        #: Changed by `get_or_create_partition` and `remove_partition`.
        self.partitions: dict[PartitionKey, Partition] = {}
        self._replicas_of_topic: dict[str, int] = {}
        #: Replicas that could not start in a leader epoch for lack of disk space or descriptors.
        self.unstarted: set[TopicPartition] = set()
        #: The paths of logs that were missing and began empty on this broker, which leads them.
        self.began_empty: dict[TopicPartition, str] = {}
        self.isr_manager = isr_manager
        #: Called when a log directory failed during an append or a read.
        self.on_directory_failure = on_directory_failure
        #: Called when a follower has truncated its log.
        self.on_truncated = on_truncated
        #: Selects the read replica of consumers (KIP-392); None: they read from the leader.
        self.read_replica = read_replica
        #: Tiered storage (KIP-405); None where it is not enabled.
        self.remote_logs = remote_logs
        #: Refuses writes that no other replica confirms, after a standstill; None in tests.
        self.standstill: StandstillGuard | None = None
        #: Throttles followers that are not in the ISR (KIP-73).
        self.leader_throttle = leader_throttle
        #: Fetches from remote storage; None without tiered storage.
        self.remote_fetches: RemoteFetches | None = None
        # The changes while a fetch is read, for each one in progress.
        self._reading: dict[int, dict[PartitionKey, None]] = {}
        self.session_watches = SessionWatches(self.partitions.get, timer)
        self._socket_timeout_ms = socket_timeout_ms
        self._clock = clock
        self._metadata = metadata
        self._refusals = RefusalLog(context.now_ms)
        self._deferred_validation = deferred_validation
        # Of the request that is validated in this step.
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
        """Accepts the next fetch of each follower with any broker epoch."""
        for partition in self.partitions.values():
            for follower in partition.followers.values():
                follower.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.session_watches.scan_all()

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

    def get_or_create_partition(self, key: TopicPartition) -> Partition:
        """The replica, which has no log and no role when it is new."""
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = Partition(key, self.context)
            count = self._replicas_of_topic.get(key.topic, 0)
            self._replicas_of_topic[key.topic] = count + 1
        return found

    def hosts_topic(self, topic: str) -> bool:
        """Whether a replica of the topic is here."""
        return topic in self._replicas_of_topic

    def remove_partition(self, key: TopicPartition) -> Partition | None:
        """The replica is gone from this broker, or was never there. Returns it, if it was."""
        partition = self.partitions.pop(key, None)
        self.began_empty.pop(key, None)
        if partition is not None:
            left = self._replicas_of_topic.pop(key.topic, 1) - 1
            if left > 0:
                self._replicas_of_topic[key.topic] = left
            self.context.topics.remove_replica(partition.statistics)
            self.session_watches.forget(key)
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
        """Append at once, for coordinators and others with one partition: see `append`.

        The callback runs in every case, perhaps before this returns.
        """
        steps = self.append(required_acks, timeout_ms, entries, callback, origin, guards, validated)
        if run_at_once(steps):
            callback()

    def append(
        self,
        required_acks: int,
        timeout_ms: int,
        entries: Sequence[ProduceEntry],
        callback: Callable[[], None],
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guards: Mapping[tuple[str, int], Verification] | None = None,
        validated: ValidatedRecords | None = None,
    ) -> Steps[bool]:
        """Append to partitions that this broker leads, and fill the responses of `entries`.

        Offsets and leader epoch are set in the given buffers. Returns True if the responses are
        filled; otherwise the callback runs when they are: with acks -1 when the records are
        committed, or after `timeout_ms` with REQUEST_TIMED_OUT; with any acks when the flush that
        `flush.messages` requires has ended. `guards` belong to verified transactions. Batches of
        clients that take long to validate are appended later, after deferred validation;
        `validated` is its result, for a call with one entry.

        It may pause between two partitions. The append to a partition, the check of its leader and
        ISR and the advance of its high watermark are one step; a leader that changes later is seen
        by `DelayedProduce`. Requests that wait for the records are completed at the end, as in
        Kafka: a fetch that waits for several of the partitions gets the records of all.
        """
        now_ms = self._clock.now_ms()
        waiting: list[Waiting] = []
        appended: deque[Partition] = deque()  # of which delayed requests are not completed yet
        deferred: list[ProduceEntry] = []
        unflushed: list[UnflushedRecords] = []
        is_limited = origin is _CLIENT and self._deferred_validation is not None
        budget, left = self._budget, DEFAULT_BUDGET if is_limited else _UNLIMITED
        try:
            for number, entry in enumerate(entries):
                if number:
                    yield
                budget.left = left  # another request may have run meanwhile
                try:
                    found = self._append_entry(
                        required_acks, entry, now_ms, origin, guards, validated
                    )
                except ValidationBudgetExceeded:
                    deferred.append(entry)
                    continue
                finally:
                    left = budget.left  # what failed has taken its time, too
                if found is not None:
                    appended.append(found[0])
                    self._note_awaited(required_acks, entry, found, unflushed, waiting)
            while appended:
                self.complete_delayed_requests(appended.popleft())
                if appended:
                    yield
        finally:  # also if the broker stops between two partitions
            while appended:
                self.complete_delayed_requests(appended.popleft())
        if not (deferred or unflushed or waiting):
            return True
        self._await_append(
            required_acks, timeout_ms, deferred, unflushed, waiting, callback, guards
        )
        return False

    def append_one(
        self,
        required_acks: int,
        timeout_ms: int,
        entry: ProduceEntry,
        callback: Callable[[], None],
    ) -> bool:
        """`append` for a client's request of one partition, in no transaction: without steps, which
        such a request has none of."""
        is_limited = self._deferred_validation is not None
        self._budget.left = DEFAULT_BUDGET if is_limited else _UNLIMITED
        unflushed: list[UnflushedRecords] = []
        waiting: list[Waiting] = []
        try:
            found = self._append_entry(required_acks, entry, self._clock.now_ms())
        except ValidationBudgetExceeded:
            self._await_append(
                required_acks, timeout_ms, [entry], unflushed, waiting, callback, None
            )
            return False
        if found is None:
            return True
        self._note_awaited(required_acks, entry, found, unflushed, waiting)
        self.complete_delayed_requests(found[0])
        if not (unflushed or waiting):
            return True
        self._await_append(required_acks, timeout_ms, [], unflushed, waiting, callback, None)
        return False

    def _append_entry(
        self,
        required_acks: int,
        entry: ProduceEntry,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guards: Mapping[tuple[str, int], Verification] | None = None,
        validated: ValidatedRecords | None = None,
    ) -> tuple[Partition, LogOffsets, int] | None:
        """Append to one partition and fill its response: see `append`.

        Returns the partition, the offsets of its log and the end offset of the records; None if the
        response has an error. Raises ValidationBudgetExceeded, with nothing done.
        """
        topic, index, records, response = entry
        try:
            partition = self.partitions.get((topic, index)) or self.partition(topic, index)
            log = partition.leader_log()
            if required_acks == -1:
                partition.check_enough_in_sync()
            elif self.standstill is not None:
                self.standstill.check()
            verification = None if guards is None else guards.get((topic, index))
            if validated is None:
                info = log.append(
                    records,
                    leader_epoch=partition.leader_epoch,
                    now_ms=now_ms,
                    origin=origin,
                    verification=verification,
                    budget=self._budget,
                )
            else:
                info = log.append_validated(
                    validated,
                    leader_epoch=partition.leader_epoch,
                    now_ms=now_ms,
                    verification=verification,
                )
        except ValidationBudgetExceeded:
            raise
        except Exception as error:
            self.append_failed(topic, index, error, response)
            return None
        offsets = log.offsets
        partition.after_append(offsets, info, records[MAGIC_POSITION])
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time
        response.log_start_offset = offsets.log_start_offset
        return partition, offsets, info.last_offset + 1

    def _note_awaited(
        self,
        required_acks: int,
        entry: ProduceEntry,
        found: tuple[Partition, LogOffsets, int],
        unflushed: list[UnflushedRecords],
        waiting: list[Waiting],
    ) -> None:
        """Add what the response of a partition waits for, if there is anything."""
        partition, offsets, end_offset = found
        if offsets.flush_required and offsets.recovery_point < end_offset:
            failed, since = offsets.failed_flushes, partition.led_since
            unflushed.append(
                UnflushedRecords(partition, since, offsets, end_offset, failed, entry[3])
            )
        elif required_acks == -1 and offsets.high_watermark < end_offset:
            waiting.append((partition, partition.led_since, end_offset, entry[3]))

    def _await_append(
        self,
        required_acks: int,
        timeout_ms: int,
        deferred: list[ProduceEntry],
        unflushed: list[UnflushedRecords],
        waiting: list[Waiting],
        callback: Callable[[], None],
        guards: Mapping[tuple[str, int], Verification] | None,
    ) -> None:
        """Call back after validation in a worker thread, flushes and replication."""
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
        else:
            self._respond_after_replication(timeout_ms, waiting, callback)

    def _respond_after_replication(
        self, timeout_ms: int, waiting: list[Waiting], callback: Callable[[], None]
    ) -> None:
        """Call back when the records are committed, or after `timeout_ms`."""
        if not waiting:
            callback()
            return
        operation = DelayedProduce(timeout_ms, waiting, callback)
        self.produce_purgatory.try_complete_else_watch(
            operation, [partition.key for partition, _, _, _ in waiting]
        )

    def complete_delayed_requests(self, partition: Partition) -> None:
        """Complete delayed fetches and produces: the log or its high watermark advanced."""
        key = partition.key
        if self._reading:
            for changed in self._reading.values():
                changed[key] = None
        if key in self.session_watches.by_key:
            self.session_watches.changed(key)
        # The usual partition has no request that waits: no call for that.
        if key in self.fetch_purgatory.watchers:
            self.fetch_purgatory.check_and_complete(key)
        if key in self.produce_purgatory.watchers:
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

    def has_records(self, key: PartitionKey, offset: int) -> bool:
        """Whether a partition has records from `offset` on that all consumers may read."""
        partition = self.partitions.get(key)
        log = None if partition is None else partition.log
        return log is not None and log.offsets.last_stable_offset > offset

    def read_one(self, params: FetchParams, item: FetchItem) -> PartitionData | None:
        """Read the records of one partition for a consumer that waits for any, or the error.

        None: it is one for `fetch`, which waits and reads remote storage.
        """
        data = PartitionData(item.partition, aborted_transactions=None)
        try:
            left = max(params.max_bytes, 0)
            taken = self._read_partition(params, item, data, left, is_first=True, now_ms=None)
        except OffsetInRemoteStorage:
            return None
        except Exception as error:  # a second read might succeed, on a directory that is offline
            self._read_failed(error, item.topic or "", data)
            return data
        return data if taken else None

    def fetch(
        self,
        params: FetchParams,
        items: list[FetchItem],
        callback: Callable[[Steps[list[FetchResult]]], None],
        session: FetchSession | None = None,
    ) -> Steps[list[FetchResult] | None]:
        """Read; wait up to `max_wait_ms` while there are fewer than `min_bytes`.

        Returns one result for each item, in their order, except for those that `params.only_news`
        leaves out. None: the fetch waits, and the callback gets the steps that return the results.
        A fetch of a follower also updates its log end offset, and so the high watermark and the
        ISR: when it arrives, not again when it is completed.

        May pause between two partitions. What changes before the wait begins in those that were
        read already is noted, and checked when it begins. Of a follower's `session` only what may
        have changed is read.
        """
        remote = self.remote_fetches
        if session is not None and params.only_news:
            watch = yield from self.session_watches.of(session, items, params.replica_id)
            if watch is not None:
                return (yield from self._fetch_news(params, items, callback, watch))
        changed: dict[PartitionKey, None] = {}
        self._reading[id(changed)] = changed
        try:
            now_ms = self.context.now_ms() if params.is_follower else None
            results, size, immediate, moved = yield from self.read(params, items, now_ms)
            if remote is not None and moved is not None:
                remote.start(moved, lambda: callback(_known(results)))
                return None
            if immediate or not items or params.max_wait_ms <= 0 or size >= params.min_bytes:
                return results
            waiting = items if remote is None else remote.local_items(items)
            by_key = {item.key: item for item in waiting}
            news = None
            if params.only_news:
                news = [
                    key for key in (*(item.key for item, _ in results), *changed) if key in by_key
                ]
            changed.update((item.key, None) for item, data in results if data.records)

            def respond(news: Iterable[PartitionKey] | None) -> None:
                found = items if news is None else [by_key[key] for key in news]
                callback(self._read_again(params, found))

            operation = DelayedFetch(
                params,
                by_key,
                self.partitions.get,
                respond,
                changed=[key for key in changed if key in by_key],
                news=news,
            )
            if params.is_follower:
                operation.throttle = self.leader_throttle
            self.fetch_purgatory.try_complete_else_watch(operation, by_key)
            return None
        finally:
            del self._reading[id(changed)]

    def _fetch_news(
        self,
        params: FetchParams,
        items: list[FetchItem],
        callback: Callable[[Steps[list[FetchResult]]], None],
        watch: SessionWatch,
    ) -> Steps[list[FetchResult] | None]:
        """As `fetch`, for the partitions of a follower's session that may have changed."""
        now_ms = self.context.now_ms()
        interval_ms = min(MAX_SCAN_INTERVAL_MS, self.context.lag_time_max_ms // 3)
        found = watch.begin(items, params.replica_epoch, now_ms, interval_ms)
        results, size, immediate, _ = yield from self.read(params, found, now_ms, watch.news)
        watch.end()
        if immediate or params.max_wait_ms <= 0 or size >= params.min_bytes or watch.is_closed:
            return results
        by_key = watch.by_key

        def respond(_: Iterable[PartitionKey] | None) -> None:
            if watch.waiting is operation:
                watch.waiting = None
            again = [by_key[key] for key in watch.news]
            callback(self._read_again(params, again, watch.news))

        # What changed since it was read above is among the news.
        operation = DelayedFetch(
            params, by_key, self.partitions.get, respond, changed=list(watch.news), news=()
        )
        operation.throttle = self.leader_throttle
        operation.delay_ms = watch.wait_ms(
            params.max_wait_ms,
            min(self.context.lag_time_max_ms, self._socket_timeout_ms) // _SHARE_OF_TIMEOUT,
        )
        watch.waiting = operation
        self.fetch_purgatory.try_complete_else_watch(operation, ())
        return None

    def _read_again(
        self,
        params: FetchParams,
        items: Iterable[FetchItem],
        news: dict[PartitionKey, None] | None = None,
    ) -> Steps[list[FetchResult]]:
        # The state of the follower is that of its last fetch: this one may be older now.
        results, *_ = yield from self.read(params, items, None, news)
        return results

    def read(
        self,
        params: FetchParams,
        items: Iterable[FetchItem],
        now_ms: int | None,
        news: dict[PartitionKey, None] | None = None,
    ) -> Steps[ReadResults]:
        """Read one partition after the other; `now_ms`: None if a follower's progress is known.

        Each item gets up to its own limit from what is left of the request's limit. The first batch
        is always complete, even if it is larger (KIP-74). The read of a partition and the progress
        of a follower in it are one step.
        """
        size, left = 0, max(params.max_bytes, 0)
        immediate = False
        moved: RemoteStorageFetch | None = None
        results: list[FetchResult] = []
        read: Iterable[FetchItem | None] = items
        if params.only_news:
            read = with_news(items, self.partitions.get, params, now_ms, news)
        for item in read:
            if item is None:
                yield
                continue
            if results:
                yield
            # Null, not empty: only readers with READ_COMMITTED get a list.
            data = PartitionData(item.partition, aborted_transactions=None)
            try:
                taken = self._read_partition(
                    params, item, data, left, is_first=size == 0, now_ms=now_ms
                )
                if data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                    immediate = True
            except Exception as error:
                taken, remote = 0, self.remote_fetches
                if not isinstance(error, OffsetInRemoteStorage) or remote is None:
                    self._read_failed(error, item.topic or "", data)
                    immediate = True
                elif params.is_follower:
                    remote.tell_follower(data)
                    immediate = True
                elif moved is None:
                    most = min(item.partition_max_bytes, left)
                    moved = remote.moved(params, item, data, most, is_first=size == 0)
                    left -= 0 if moved is None else most
            size += taken
            left = left - taken if left > taken else 0
            results.append((item, data))
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
        """Fill `data` from one partition; return the number of bytes.

        `now_ms`: None if the fetch says nothing about the follower now.
        """
        partition = self.partitions.get(item.key)
        if partition is None or partition.offline:
            partition = self.partition(item.topic or "", item.partition)
        if item.topic_id not in (partition.topic_id, ZERO_UUID):
            partition.check_topic_id(item.topic_id)  # else it is fetched by name
        log = partition.log_for(item.current_leader_epoch, params.leader_only)
        follower = None
        if params.is_follower:
            follower = partition.follower(
                params.replica_id, item.current_leader_epoch, params.replica_epoch
            )
        offsets = log.offsets
        # From before the read: a later append does not make the follower lag.
        end_offset = offsets.log_end_offset
        data.high_watermark = offsets.high_watermark
        data.last_stable_offset = offsets.last_stable_offset
        data.log_start_offset = offsets.log_start_offset
        data.records = b""
        if item.last_fetched_epoch >= 0 and diverges(partition, log, item, data):
            return 0
        if follower is None and self.read_replica is not None and partition.is_leader:
            preferred = self.read_replica.choose(partition, params.client_rack, item.fetch_offset)
            if preferred >= 0:
                data.preferred_read_replica = preferred
                return 0
        taken = 0
        # Most partitions of a follower's fetch have nothing new.
        if follower is None or item.fetch_offset != end_offset:
            taken = read_records(log, params, item, data, left, is_first)
        if taken and follower is not None and (quota := self.leader_throttle) is not None:
            if holds_back(quota, follower.broker_id, partition):
                taken, data.records = 0, b""
            elif quota.is_throttled(partition.topic, partition.index):
                quota.record(taken, self.context.now_ms())
        if follower is not None and now_ms is not None:
            follower.broker_epoch = params.replica_epoch
            self._record_fetch(partition, follower, item, end_offset, now_ms)
        return taken

    def _record_fetch(
        self,
        partition: Partition,
        follower: FollowerReplica,
        item: FetchItem,
        end_offset: int,
        now_ms: int,
    ) -> None:
        """Record that a follower has the records below its fetch offset; `end_offset` is that of
        the leader before the read. Move the high watermark, and complete what has waited for that.
        """
        before, start_before = follower.log_end_offset, follower.log_start_offset
        follower.record_fetch(item.fetch_offset, item.log_start_offset, end_offset, now_ms)
        if self.isr_manager is not None and follower.broker_id not in partition.maximal_isr:
            self.isr_manager.maybe_expand(partition, follower)
        log, moved = partition.log, follower.log_end_offset != before
        # Also when it has everything: the replica that the high watermark waited for may be gone
        # since the last fetch (a broker that stops), and nothing else may be appended.
        if (
            moved or (log is not None and log.offsets.high_watermark < follower.log_end_offset)
        ) and partition.maybe_increment_high_watermark():
            self.complete_delayed_requests(partition)
        if follower.log_start_offset != start_before:
            self.delete_records_purgatory.check_and_complete(partition.key)

    def _read_failed(self, error: Exception, topic: str, data: PartitionData) -> None:
        data.error_code = error_code(error)
        if data.error_code == ErrorCode.CORRUPT_MESSAGE:
            self._refusals.log_damage(topic, data.partition_index, error)
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


def _known(results: list[FetchResult]) -> Steps[list[FetchResult]]:
    yield from ()
    return results


class RefusalLog:
    """The refused appends of all partitions, and the reads of damaged batches."""

    __slots__ = ("_logged", "_now_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is monotonic."""
        self._now_ms = now_ms
        self._logged: dict[tuple[str, int, int], int] = {}

    def log(self, topic: str, index: int, code: int, error: Exception) -> None:
        """Logs that an append failed with this error code, unless it did so a short time ago."""
        if self._is_due((topic, index, code)):
            logger.info(
                "Append to partition %s-%d refused: %s",
                topic,
                index,
                error,
                extra={"topic": topic, "partition": index},
            )

    def log_damage(self, topic: str, index: int, error: Exception) -> None:
        """Logs that records cannot be read, unless it did so a short time ago. Their clients fail
        with CORRUPT_MESSAGE, and cannot say which file is damaged."""
        if self._is_due((topic, index, _READ)):
            logger.error(
                "A file of partition %s-%d is damaged, reads of it fail: %s; `ottla log verify`"
                " lists the damage",
                topic,
                index,
                error,
                extra={"topic": topic, "partition": index},
            )

    def _is_due(self, key: tuple[str, int, int]) -> bool:
        now_ms = self._now_ms()
        if len(self._logged) >= _MAX_TRACKED:
            self._logged.clear()
        if now_ms - self._logged.get(key, -_INTERVAL_MS) < _INTERVAL_MS:
            return False
        self._logged[key] = now_ms
        return True
