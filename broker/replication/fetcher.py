"""Fetch the partitions of one leader, and append what it sends.

Mirrors Kafka's `ReplicaFetcherThread`: one task for each leader and each of `num.replica.fetchers`
sends one Fetch request after the other for all partitions that follow the leader. The follower
truncates on fetch (KIP-595): each request has the epoch of the last record in the log; if the
response has a diverging epoch, the follower truncates its log to the end offset of that epoch.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ottla.broker.replication.fetch_session_handler import FetchSessionHandler, PartitionFetchState
from ottla.broker.replication.follower_truncation import (
    FollowerTruncation,
    has_uncommitted_records_without_epoch,
)
from ottla.broker.replication.leader_endpoint import (
    EARLIEST,
    LATEST,
    LeaderEndpoint,
    LeaderUnreachable,
)
from ottla.broker.replication.partition import Partition
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from ottla.protocol.records.batch import LOG_OVERHEAD, read_size
from ottla.protocol.records.errors import CorruptRecordError, RecordsError
from ottla.protocol.steps import Turn, run_in_turns
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import LogDirectoryOffline, StorageError, UnexpectedAppendOffset

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ottla.broker.cluster.broker_epoch import BrokerEpoch
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.replication.group_commit import GroupCommit
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.replication.tier_state_machine import TieredFollowers
    from ottla.protocol.client.aio_connection import AsyncConnection
    from ottla.protocol.client.security import Security
    from ottla.storage.log.flush import LogFlusher
    from ottla.storage.log.log import Log


logger = logging.getLogger("ottla.replication")

_FETCH = 1
_NEWEST_FETCH = 17
_IDS_SINCE = 13
_REPLICA_STATE_SINCE = 15

# Each piece is one write. The append of this many of the smallest batches takes a
# millisecond, as does that of 1 MiB in few batches.
_BATCHES_PER_STEP = 128
# An offset, a size and a message of magic 0 with neither key nor value.
_SMALLEST_BATCH_BYTES = 26

# While nothing changes, the own logs are compared once in this time: local retention moves a log
# start offset without a word.
_QUIET_SECONDS = 5.0

# The leader has evicted the session, as it may at any time: the next request opens a new one.
_SESSION_EVICTED = frozenset(
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
)

# Retriable: the state of the leader or the next LeaderAndIsr request resolves them.
_RETRIABLE = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)


class Fetcher:
    """One connection to one leader, and the partitions that are fetched over it. Loop only."""

    def __init__(
        self,
        address: tuple[str, int],
        settings: FetcherSettings,
        replica_manager: ReplicaManager,
        group_commit: GroupCommit,
        now_ms: Callable[[], int],
    ) -> None:
        self._address = address
        self._settings = settings
        self._replica_manager = replica_manager
        self._group_commit = group_commit
        self._now_ms = now_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        # Partitions after an error, with the monotonic time of their next fetch.
        self._delayed_until: dict[TopicPartition, float] = {}
        # The partitions of the current response that had an error, by error code.
        self._errors: dict[int, list[TopicPartition]] = {}
        self._lags = FollowerLags(settings.throttle)
        # Logs of the current response that `flush.messages` requires to be flushed.
        self._unflushed: list[LogFlusher] = []
        # Partitions that are not fetched before the log is truncated: to its high watermark, or to
        # where a power failure has lost records.
        self._truncate_first: set[TopicPartition] = set()
        self._truncation = FollowerTruncation(replica_manager.on_truncated, group_commit.run)
        broker_id, timeout_ms = settings.broker_id, settings.timeout_ms
        self._leader = LeaderEndpoint(self._connect, broker_id, timeout_ms)
        self._tiered: TieredFollowers | None = None
        if replica_manager.remote_logs is not None:
            from ottla.broker.replication import tier_state_machine as tier

            leader = LeaderEndpoint(self._usable_connection, broker_id, timeout_ms)
            remote_logs = replica_manager.remote_logs
            machine = tier.TierStateMachine(remote_logs, leader, now_ms, self._truncation)
            self._tiered = tier.TieredFollowers(machine, self._build_ended)
        # Partitions whose log continues behind remote segments: not fetched before that is done.
        self._building: Collection[TopicPartition] = self._tiered.building if self._tiered else ()
        self._session = FetchSessionHandler(settings.partition_max_bytes)
        # What the last request had, if its response was empty and nothing has changed since.
        self._quiet: dict[TopicPartition, PartitionFetchState] | None = None
        self._quiet_until = 0.0
        self._all_have_ids = False
        self._changed = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._failure = ""
        self._task = spawn(self._run(), name="fetcher-{}:{}".format(*address))

    def add(self, partition: Partition) -> None:
        """Fetches `partition` from its log end offset."""
        log = partition.log
        assert log is not None, "a follower has a log"
        if has_uncommitted_records_without_epoch(log) or log.offsets.missing_from is not None:
            self._truncate_first.add(partition.key)
        self._partitions[partition.key] = partition
        self._delayed_until.pop(partition.key, None)
        self._lags.add(partition.key)
        self._quiet = None
        self._changed.set()

    def remove(self, key: TopicPartition) -> None:
        """Stops fetching it; a response in flight is ignored for it."""
        self._partitions.pop(key, None)
        self._quiet = None
        self._delayed_until.pop(key, None)
        self._lags.remove(key)
        self._truncate_first.discard(key)
        if self._tiered is not None:
            self._tiered.end(key)

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition at the last fetch (Kafka's MaxLag)."""
        return self._lags.largest

    def partitions(self) -> list[Partition]:
        """The partitions that are fetched."""
        return list(self._partitions.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is no partition to fetch."""
        return not self._partitions

    def stop(self) -> None:
        """Cancels the task and closes the connection."""
        self._task.cancel()
        if self._tiered is not None:
            self._tiered.stop()
        if self._connection is not None:
            self._connection.close()

    # -- the loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            for key in list(self._truncate_first):
                await self._truncate_before_fetching(key)
            self._changed.clear()
            fetch_states = await self._fetch_states()
            if not fetch_states:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.backoff_ms / 1000):
                        await self._changed.wait()
                continue
            try:
                await self._fetch(fetch_states)
                self._log_connection_state("")
            except Exception as error:
                self._disconnect()
                self._log_connection_state(str(error) or type(error).__name__)
                await asyncio.sleep(self._settings.backoff_ms / 1000)

    def _log_connection_state(self, failure: str) -> None:
        """Logs when fetching starts to fail, fails in another way, or recovers."""
        if failure == self._failure:
            return
        self._failure = failure
        host, port = self._address
        if failure:
            logger.info("Error sending fetch request to %s:%d, retrying: %s", host, port, failure)
        else:
            logger.info("Fetching from %s:%d recovered", host, port)

    async def _truncate_before_fetching(self, key: TopicPartition) -> None:
        """Records without leader epochs: only those below the high watermark are committed. Records
        behind others that a power failure has lost are fetched again, with those."""
        partition = self._partitions.get(key)
        log = None if partition is None else partition.log
        if partition is None or log is None or self._is_delayed(key):
            return
        is_done = False
        try:
            if log.offsets.missing_from is not None:
                await self._truncate_to_missing(partition, log, log.offsets.missing_from)
            if has_uncommitted_records_without_epoch(log):
                await self._truncation.truncate_to(partition, log, log.high_watermark)
            is_done = not has_uncommitted_records_without_epoch(log)
        except (KafkaError, LeaderUnreachable) as error:
            if isinstance(error, KafkaError):
                self._errors.setdefault(error.code, []).append(key)
                self._log_errors()
            self._delay(key)
        except Exception as error:
            self._partition_failed(partition, log.log_end_offset, error)
        if is_done:
            self._truncate_first.discard(key)

    async def _truncate_to_missing(self, partition: Partition, log: Log, offset: int) -> None:
        """Only if the leader says that it has all records from there on: it has an offset for each,
        and the same history. What is truncated is set aside: the leader may have a gap as well. If
        it has not all, the log stays as it is, as in Kafka."""
        key, leader_epoch = partition.key, partition.leader_epoch
        epoch, end = log.leader_epochs.latest_epoch, log.log_end_offset
        earliest, _ = await self._leader.offset(key, leader_epoch, EARLIEST)
        known = await self._leader.end_offset_for_epoch(key, leader_epoch, epoch)
        if partition.leader_epoch != leader_epoch or partition.log is not log or log.local.closed:
            return
        if earliest <= offset and known[0] == epoch >= 0 and known[1] >= end:
            logger.warning(
                "[Partition %s] Truncating to %d: records are missing there, the leader has them",
                key,
                offset,
                extra=key._asdict(),
            )
            log.offsets.committed_limit = end
            if not await self._truncation.truncate_to(partition, log, offset):
                return
        log.offsets.missing_from = None

    def _is_delayed(self, key: TopicPartition) -> bool:
        """Whether the back-off after an error of this partition is not over."""
        until = self._delayed_until.get(key)
        if until is not None and until > asyncio.get_running_loop().time():
            return True
        self._delayed_until.pop(key, None)
        return False

    async def _fetch_states(self) -> dict[TopicPartition, PartitionFetchState]:
        quiet, now = self._quiet, asyncio.get_running_loop().time()
        if quiet is not None and now < self._quiet_until and not self._is_restless():
            return quiet
        self._quiet_until = now + _QUIET_SECONDS
        fetch_states: dict[TopicPartition, PartitionFetchState] = {}
        # Until a response has something, or a partition comes or goes, also during a pause below.
        self._quiet = fetch_states
        known, lagging, turn = self._session.known, self._lags.lagging, Turn()
        for key, partition in list(self._partitions.items()):
            if turn.is_over:
                await turn.pause()
            if self._delayed_until and self._is_delayed(key):
                continue
            if key in self._building or key in self._truncate_first:
                continue
            log = partition.log
            if log is None or partition.offline or (offsets := log.offsets).flush_required:
                continue  # flush_required: the last flush failed
            if lagging and key in lagging and self._lags.is_held_back(key):
                continue
            end, start = offsets.log_end_offset, offsets.log_start_offset
            epoch, last_epoch = partition.leader_epoch, log.leader_epochs.latest_epoch
            state = (partition.topic_id, end, epoch, last_epoch, start)
            last = known.get(key)
            # Where nothing has changed, the object of the last fetch: this is quick to see.
            if last is None or last != state:
                last = PartitionFetchState(*state)
            fetch_states[key] = last
        self._all_have_ids = all(each.topic_id != ZERO_UUID for each in fetch_states.values())
        return fetch_states

    def _is_restless(self) -> bool:
        """Whether some partitions are not fetched for a while, or some wait for their quota."""
        has_delayed = self._delayed_until or self._truncate_first or self._building
        return bool(has_delayed or self._lags.lagging)

    async def _fetch(self, fetch_states: dict[TopicPartition, PartitionFetchState]) -> None:
        connection = await self._connect()
        settings = self._settings
        version = min(_NEWEST_FETCH, connection.versions[_FETCH][1])
        if version >= _IDS_SINCE and not self._all_have_ids:
            version = _IDS_SINCE - 1
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
        )
        if version >= _REPLICA_STATE_SINCE:
            request.replica_state = ReplicaState(settings.broker_id, settings.broker_epoch.value)
        else:
            request.replica_id = settings.broker_id
        await run_in_turns(self._session.fill(request, fetch_states, version >= _IDS_SINCE))
        timeout_ms = settings.max_wait_ms + settings.timeout_ms
        responded = connection.request(request, timeout_ms, version=version, in_turns=True)
        response = cast("FetchResponse", await responded)
        if not self._session.handle_response(response.error_code, response.session_id):
            if response.error_code not in _SESSION_EVICTED:
                raise ConnectionError(f"{error_name(response.error_code)} in the Fetch response")
            return
        await self._process(response, fetch_states)
        self._log_errors()
        # The next fetch reports to the leader that the records are in this log.
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, []
            await self._group_commit.wait(unflushed)

    # -- responses ------------------------------------------------------------------------------

    async def _process(
        self, response: FetchResponse, fetch_states: dict[TopicPartition, PartitionFetchState]
    ) -> None:
        turn = Turn()
        if response.responses:
            self._quiet = None
        for topic in response.responses:
            name = topic.topic or self._session.names.get(topic.topic_id, "")
            for data in topic.partitions:
                await turn.share()
                key = TopicPartition(name, data.partition_index)
                fetch_state = fetch_states.get(key)
                partition = self._partitions.get(key)
                if fetch_state is not None and partition is not None:
                    await self._process_partition_data(partition, fetch_state, data, turn)

    async def _process_partition_data(
        self,
        partition: Partition,
        fetch_state: PartitionFetchState,
        data: PartitionData,
        turn: Turn,
    ) -> None:
        if not self._is_current(partition, fetch_state, fetch_state.fetch_offset):
            self._session.renew()
            return  # Changed while the request was in flight.
        code = data.error_code
        try:
            if code == ErrorCode.NONE:
                diverging = data.diverging_epoch
                if diverging is not None and diverging.epoch >= 0:
                    await self._truncation.truncate_on_diverging_epoch(
                        partition, diverging.epoch, diverging.end_offset
                    )
                else:
                    await self._append(partition, fetch_state, data, turn)
            elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
                try:
                    await self._handle_out_of_range(partition, fetch_state)
                except KafkaError as error:
                    self._errors.setdefault(error.code, []).append(partition.key)
                    self._delay(partition.key)
            elif code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE and self._tiered is not None:
                self._tiered.begin(partition, data.log_start_offset)
            elif code == ErrorCode.FENCED_LEADER_EPOCH:
                # There is a newer leader epoch; its LeaderAndIsr request adds the partition again.
                logger.info(
                    "Partition %s has an older epoch (%d) than the current leader. "
                    "Will await the new LeaderAndIsr state before resuming fetching.",
                    partition.key,
                    partition.leader_epoch,
                    extra=partition.key._asdict(),
                )
                self.remove(partition.key)
            else:
                self._errors.setdefault(code, []).append(partition.key)
                self._delay(partition.key)
        except LeaderUnreachable:
            raise
        except Exception as error:
            self._partition_failed(partition, fetch_state.fetch_offset, error)

    def _partition_failed(self, partition: Partition, offset: int, error: Exception) -> None:
        """The other partitions of this leader go on."""
        if isinstance(error, LogDirectoryOffline):
            self.remove(partition.key)
            self._replica_manager.on_directory_failure(error.directory)
            return
        expected = isinstance(error, (StorageError, RecordsError))
        logger.error(
            "%s while processing data for partition %s at offset %d: %s",
            "Error" if expected else "Unexpected error",
            partition.key,
            offset,
            error or type(error).__name__,
            exc_info=None if expected else error,
            extra=partition.key._asdict(),
        )
        self._delay(partition.key)

    def _log_errors(self) -> None:
        """One line for each error code: a new topic may have a thousand partitions."""
        refused, self._errors = self._errors, {}
        for code, keys in refused.items():
            level = logging.INFO if code in _RETRIABLE else logging.WARNING
            more = f" and {len(keys) - 1} more partitions" if len(keys) > 1 else ""
            logger.log(
                level,
                "Error %s in the Fetch response for partition %s%s",
                error_name(code),
                keys[0],
                more,
                extra=keys[0]._asdict(),
            )

    def _is_current(
        self, partition: Partition, fetch_state: PartitionFetchState, log_end_offset: int
    ) -> bool:
        """Whether what was fetched can be appended. By its topic id: it was created again."""
        log = partition.log
        return (
            self._partitions.get(partition.key) is partition
            and partition.leader_epoch == fetch_state.leader_epoch
            and log is not None
            and log.log_end_offset == log_end_offset
            and partition.topic_id == fetch_state.topic_id
        )

    async def _append(
        self,
        partition: Partition,
        fetch_state: PartitionFetchState,
        data: PartitionData,
        turn: Turn,
    ) -> None:
        """Append the records; other tasks may run between two pieces. What they change ends it."""
        log = partition.log
        assert log is not None
        offsets, size = log.offsets, 0
        try:
            for piece in in_pieces(cast("memoryview", data.records or b"")):
                if size and turn.is_over:
                    end_offset = offsets.log_end_offset
                    await turn.pause()
                    is_same = partition.log is log
                    if not is_same or not self._is_current(partition, fetch_state, end_offset):
                        self._session.renew()
                        return
                append_from_leader(
                    log, piece, self._now_ms(), self._truncation.truncate_fully_and_start_at
                )
                size += len(piece)
        finally:
            partition.context.topics.replicated_in_bytes += size
            if offsets.flush_required and offsets.log_end_offset != fetch_state.fetch_offset:
                self._unflushed.append(log.flusher)
        end_offset = offsets.log_end_offset
        self._lags.record(partition.key, size, data.high_watermark - end_offset)
        if (before := offsets.high_watermark) < data.high_watermark:
            offsets.update_high_watermark(min(data.high_watermark, end_offset))
        if offsets.log_start_offset < data.log_start_offset <= offsets.high_watermark:
            log.truncator.delete_records_before(data.log_start_offset)
        if offsets.high_watermark != before:
            # Consumers may read from followers (KIP-392).
            self._replica_manager.complete_delayed_requests(partition)

    async def _handle_out_of_range(
        self, partition: Partition, fetch_state: PartitionFetchState
    ) -> None:
        """The fetch offset is outside of the leader's log.

        Truncates to the leader's log end offset if that is lower, or else starts again at its log
        start offset. Mirrors `fetchOffsetAndTruncate` of Kafka's `AbstractFetcherThread`.
        """
        key, leader_epoch, log = partition.key, fetch_state.leader_epoch, partition.log
        assert log is not None, "a follower has a log"

        def has_changed() -> bool:
            # The files of a deleted log may be gone, which would look like a failed disk.
            is_same = partition.leader_epoch == leader_epoch and partition.log is log
            return not is_same or log.local.closed or self._partitions.get(key) is not partition

        latest, _ = await self._leader.offset(key, leader_epoch, LATEST)
        if has_changed():
            return
        if latest < log.log_end_offset:
            logger.warning(
                "[Partition %s] Truncating to %d: reset fetch offset from %d to the latest "
                "offset of the leader, which was elected out of the ISR",
                partition.key,
                latest,
                log.log_end_offset,
                extra=partition.key._asdict(),
            )
            await self._truncation.truncate_to(partition, log, latest)
            return
        # The next fetch learns whether the records from there on are in remote storage.
        earliest, _ = await self._leader.offset(key, leader_epoch, EARLIEST)
        if has_changed():
            return
        if earliest > log.log_end_offset:
            logger.info(
                "[Partition %s] Truncate fully and start at offset %d, the current leader's start "
                "offset",
                partition.key,
                earliest,
                extra=partition.key._asdict(),
            )
            # That the leader has none of these records is one fact, retention is the other.
            keep = not log.retention.is_expired(self._now_ms())
            is_prepared = await self._truncation.prepare_full_truncation(
                partition, log, keep_committed=keep
            )
            if is_prepared and not has_changed():
                self._truncation.truncate_fully_and_start_at(log, earliest, keep_committed=keep)
        else:
            log.truncator.delete_records_before(
                min(max(earliest, log.log_start_offset), log.high_watermark)
            )

    def _build_ended(self, partition: Partition, error: Exception | None) -> None:
        """`error` is one that is not expected, or of the disk."""
        if error is not None:
            log = partition.log
            self._partition_failed(partition, -1 if log is None else log.log_end_offset, error)
        self._changed.set()

    def _delay(self, key: TopicPartition) -> None:
        now = asyncio.get_running_loop().time()
        self._quiet = None
        self._delayed_until[key] = now + self._settings.backoff_ms / 1000

    # -- the connection -------------------------------------------------------------------------

    async def _connect(self) -> AsyncConnection:
        connection = self._connection
        if connection is not None and connection.is_usable:
            return connection
        self._session.reset()
        connection = self._connection = await self._settings.connect(*self._address)
        return connection

    async def _usable_connection(self) -> AsyncConnection:
        """For requests beside the fetches, which connect again."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            raise ConnectionError("the connection to the leader is closed")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._session.reset()


# Of a follower before its first response: it lags, by an unknown number of records.
_UNKNOWN = 0


class FollowerLags:
    """The partitions that have not caught up with their leader: only these are ever delayed.
    Loop only."""

    def __init__(self, throttle: ReplicationQuota | None) -> None:
        self._throttle = throttle
        #: By how much the log end offset of a partition is below the leader's high watermark.
        self.lagging: dict[TopicPartition, int] = {}

    def add(self, key: TopicPartition) -> None:
        """A partition is followed from now on. As in Kafka it lags until a response says more, so
        that its first records wait for the quota, too."""
        self.lagging[key] = _UNKNOWN

    def remove(self, key: TopicPartition) -> None:
        """A partition is not followed any more."""
        self.lagging.pop(key, None)

    def record(self, key: TopicPartition, size: int, lag: int) -> None:
        """The last response had `size` bytes of records; `lag` remains after them."""
        if lag > 0:
            self.lagging[key] = lag
        else:
            self.lagging.pop(key, None)
        throttle = self._throttle
        if size and throttle is not None and throttle.is_throttled(*key):
            throttle.record(size, _monotonic_ms())

    @property
    def largest(self) -> int:
        """The largest lag of a partition at the last fetch (Kafka's MaxLag)."""
        return max(self.lagging.values(), default=0)

    def is_held_back(self, key: TopicPartition) -> bool:
        """Whether the quota delays this partition, which is one of `lagging`."""
        throttle = self._throttle
        return (
            throttle is not None
            and throttle.is_throttled(*key)
            and throttle.is_exceeded(_monotonic_ms())
        )


def _monotonic_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class FetcherSettings:
    """The settings of all fetchers of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        broker_epoch: BrokerEpoch,
        *,
        throttle: ReplicationQuota | None = None,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
        security: Security | None = None,
    ) -> None:
        """`tls` returns how leaders are reached, when the inter-broker listener uses TLS.
        `security`: the login of this broker, when that listener uses SASL."""
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.max_wait_ms = config.replica_fetch_wait_max_ms
        self.min_bytes = config.replica_fetch_min_bytes
        self.max_bytes = config.replica_fetch_response_max_bytes
        self.partition_max_bytes = config.replica_fetch_max_bytes
        self.backoff_ms = config.replica_fetch_backoff_ms
        self.timeout_ms = config.replica_socket_timeout_ms
        self.throttle = throttle
        self._tls = tls
        self._security = security

    async def connect(self, host: str, port: int) -> AsyncConnection:
        """Connects to the leader at an address."""
        from ottla.protocol.client.aio_connection import AsyncConnection

        name = f"broker-{self.broker_id}-fetcher"
        connection = AsyncConnection(
            host,
            port,
            client_id=name,
            ssl_context=None if self._tls is None else self._tls(),
            security=self._security,
        )
        await connection.connect(self.timeout_ms)
        return connection


def in_pieces(records: bytes | memoryview) -> Iterable[memoryview]:
    """Divide `records`, in order, into pieces of a bounded number of batches.

    Bytes that are not a batch are in the last piece, for the append to refuse.
    """
    view = memoryview(records)
    if len(view) <= _BATCHES_PER_STEP * _SMALLEST_BATCH_BYTES:
        return (view,) if view else ()
    return _walked(view)


def _walked(records: memoryview) -> Iterator[memoryview]:
    begin = position = count = 0
    while position + LOG_OVERHEAD <= len(records):
        if count == _BATCHES_PER_STEP:
            yield records[begin:position]
            begin, count = position, 0
        try:
            position += read_size(records, position)
        except CorruptRecordError:
            break
        count += 1
    yield records[begin:]


def append_from_leader(
    log: Log, records: memoryview, now_ms: int, truncate_fully: Callable[[Log, int], None]
) -> None:
    """Append batches that the leader has at the end of `log`.

    `truncate_fully` empties a log that is to start at an offset. Raises what
    `Log.append_as_follower` raises.
    """
    try:
        log.append_as_follower(records, now_ms=now_ms)
    except UnexpectedAppendOffset as error:
        is_empty = log.log_start_offset == log.log_end_offset
        if not (is_empty and error.first_offset < log.log_end_offset <= error.last_offset):
            raise
        # The leader's log start offset is inside a batch (DeleteRecords). This log has the
        # whole batch, too; its log start offset becomes the leader's after the append.
        logger.info(
            "[Partition %s-%d] Truncate fully and start at offset %d, the first offset of the "
            "batch that contains the leader's log start offset %d",
            log.topic,
            log.partition,
            error.first_offset,
            log.log_start_offset,
            extra={"topic": log.topic, "partition": log.partition},
        )
        truncate_fully(log, error.first_offset)
        log.append_as_follower(records, now_ms=now_ms)
