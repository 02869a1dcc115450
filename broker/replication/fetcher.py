"""Copies partitions from one leader: the follower's loop.

One task for each leader (and each of `num.replica.fetchers`) fetches all partitions that follow it
in one request after the other. Mirrors Kafka's `ReplicaFetcherThread` with truncation on fetch
(KIP-595): each request names the epoch of the last record that the follower has; where the leader
answers that this epoch ends elsewhere, the follower cuts its log there and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from ottla.broker.replication.fetch_session_client import FetchSessionClient, Wanted
from ottla.broker.replication.partition import Partition
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import LogDirectoryOffline, StorageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.client.aio_connection import AsyncConnection
    from ottla.protocol.client.security import Security
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.replication")

_FETCH = 1
_LATEST = -1
_EARLIEST_LOCAL = -4
_EARLIEST_LOCAL_SINCE = 8
_NEWEST_FETCH = 17
_IDS_SINCE = 13
_REPLICA_STATE_SINCE = 15

# The leader has forgotten the session, as it may at any time: the next request opens a new one.
_SESSION_LOST = frozenset(
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
)

# What time or the next LeaderAndIsr request cures: the partition rests for a moment.
_WAIT = frozenset(
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


class FetcherSettings:
    """The settings of all fetchers of a broker."""

    def __init__(self, config: BrokerConfig, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.max_wait_ms = config.replica_fetch_wait_max_ms
        self.min_bytes = config.replica_fetch_min_bytes
        self.max_bytes = config.replica_fetch_response_max_bytes
        self.partition_max_bytes = config.replica_fetch_max_bytes
        self.backoff_ms = config.replica_fetch_backoff_ms
        self.timeout_ms = config.replica_socket_timeout_ms
        self.throttle: ReplicationQuota | None = None
        #: How leaders are reached, when the inter-broker listener uses TLS.
        self.tls: ssl.SSLContext | None = None
        #: Who this broker says it is, when that listener uses SASL.
        self.security: Security | None = None

    async def connect(self, host: str, port: int) -> AsyncConnection:
        """A connection to the leader at an address."""
        from ottla.protocol.client.aio_connection import AsyncConnection

        name = f"broker-{self.broker_id}-fetcher"
        connection = AsyncConnection(
            host, port, client_id=name, ssl_context=self.tls, security=self.security
        )
        await connection.connect(self.timeout_ms)
        return connection


class Fetcher:
    """One connection to one leader, and what is copied over it. Loop only."""

    def __init__(
        self,
        address: tuple[str, int],
        settings: FetcherSettings,
        replica_manager: ReplicaManager,
        now_ms: Callable[[], int],
    ) -> None:
        self._address = address
        self._settings = settings
        self._replica_manager = replica_manager
        self._now_ms = now_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        # Partitions that rest, with the monotonic time at which they go on.
        self._resting: dict[TopicPartition, float] = {}
        # What the answer of this fetch has refused, by error.
        self._refused: dict[int, list[TopicPartition]] = {}
        # Partitions in which the leader's high watermark is beyond what we have.
        self._behind: set[TopicPartition] = set()
        self._session = FetchSessionClient(settings.partition_max_bytes)
        self._changed = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._failure = ""
        host, port = address
        self._task = spawn(self._run(), name=f"fetcher-{host}:{port}")

    def add(self, partition: Partition) -> None:
        """Copies `partition` from where its log ends."""
        log = partition.log
        assert log is not None, "a follower has a log"
        if log.leader_epochs.latest_epoch < 0:
            # Records of before there were epochs: only what is committed is known to be shared.
            self._truncate(log, log.high_watermark)
        self._partitions[partition.key] = partition
        self._resting.pop(partition.key, None)
        self._changed.set()

    def remove(self, key: TopicPartition) -> None:
        """Copies it no more; what is on the way is thrown away when it comes."""
        self._partitions.pop(key, None)
        self._resting.pop(key, None)
        self._behind.discard(key)

    def partitions(self) -> list[Partition]:
        """What is copied."""
        return list(self._partitions.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to copy."""
        return not self._partitions

    def stop(self) -> None:
        """Ends the loop and the connection."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    # -- the loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            wanted = self._wanted()
            if not wanted:
                self._changed.clear()
                try:
                    async with asyncio.timeout(self._settings.backoff_ms / 1000):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            try:
                await self._fetch(wanted)
                self._report("")
            except Exception as error:
                self._disconnect()
                self._report(str(error) or type(error).__name__)
                await asyncio.sleep(self._settings.backoff_ms / 1000)

    def _report(self, failure: str) -> None:
        """One line when copying begins to fail, fails in another way, or works again."""
        if failure == self._failure:
            return
        self._failure = failure
        host, port = self._address
        if failure:
            logger.info("cannot copy from the leader at %s:%d, trying on: %s", host, port, failure)
        else:
            logger.info("copying from the leader at %s:%d again", host, port)

    def _wanted(self) -> dict[TopicPartition, Wanted]:
        now = asyncio.get_running_loop().time()
        wanted: dict[TopicPartition, Wanted] = {}
        for key, partition in self._partitions.items():
            until = self._resting.get(key)
            if until is not None:
                if until > now:
                    continue
                del self._resting[key]
            log = partition.log
            if log is None or partition.offline or self._is_held_back(key):
                continue
            wanted[key] = Wanted(
                partition.topic_id,
                log.log_end_offset,
                partition.leader_epoch,
                log.leader_epochs.latest_epoch,
                log.log_start_offset,
            )
        return wanted

    def _is_held_back(self, key: TopicPartition) -> bool:
        """Whether a throttle lets this partition wait; never one in which we have everything."""
        throttle = self._settings.throttle
        return (
            throttle is not None
            and key in self._behind
            and throttle.is_throttled(key.topic, key.partition)
            and throttle.is_exceeded(self._monotonic_ms())
        )

    def _note_copied(self, key: TopicPartition, size: int, is_behind: bool) -> None:
        if is_behind:
            self._behind.add(key)
        else:
            self._behind.discard(key)
        throttle = self._settings.throttle
        if size and throttle is not None and throttle.is_throttled(key.topic, key.partition):
            throttle.record(size, self._monotonic_ms())

    def _monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _fetch(self, wanted: dict[TopicPartition, Wanted]) -> None:
        connection = await self._connect()
        settings = self._settings
        version = min(_NEWEST_FETCH, connection.versions[_FETCH][1])
        if version >= _IDS_SINCE and any(each.topic_id == ZERO_UUID for each in wanted.values()):
            version = _IDS_SINCE - 1
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
        )
        if version >= _REPLICA_STATE_SINCE:
            request.replica_state = ReplicaState(settings.broker_id, settings.broker_epoch)
        else:
            request.replica_id = settings.broker_id
        self._session.fill(request, wanted, version >= _IDS_SINCE)
        timeout_ms = settings.max_wait_ms + settings.timeout_ms
        response = cast(
            "FetchResponse", await connection.request(request, timeout_ms, version=version)
        )
        if not self._session.responded(response.error_code, response.session_id):
            if response.error_code not in _SESSION_LOST:
                raise ConnectionError(f"it answers {error_name(response.error_code)} to a fetch")
            return
        names = {each.topic_id: key.topic for key, each in wanted.items()}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                key = TopicPartition(name, data.partition_index)
                asked = wanted.get(key)
                partition = self._partitions.get(key)
                if asked is not None and partition is not None:
                    await self._take(partition, asked, data)
        self._say_refusals()

    # -- answers --------------------------------------------------------------------------------

    async def _take(self, partition: Partition, asked: Wanted, data: PartitionData) -> None:
        log = partition.log
        if (
            log is None
            or partition.leader_epoch != asked.leader_epoch
            or log.log_end_offset != asked.fetch_offset
        ):
            return  # The leader changed, or the log was cut, while the answer was on its way.
        code = data.error_code
        try:
            if code == ErrorCode.NONE:
                diverging = data.diverging_epoch
                if diverging is not None and diverging.epoch >= 0:
                    await self._cut(partition, diverging.epoch, diverging.end_offset)
                else:
                    self._append(partition, data)
            elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._find_range(partition, asked)
            elif code == ErrorCode.FENCED_LEADER_EPOCH:
                # A newer leader exists; its LeaderAndIsr request will add the partition again.
                logger.info(
                    "%s: fenced by a newer leader epoch",
                    partition.key,
                    extra=partition.key._asdict(),
                )
                self.remove(partition.key)
            else:
                self._refused.setdefault(code, []).append(partition.key)
                self._rest(partition.key)
        except LogDirectoryOffline as error:
            self.remove(partition.key)
            self._replica_manager.on_directory_failure(error.directory)
        except (StorageError, RecordsError) as error:
            # The other partitions of this leader go on.
            logger.error(
                "%s: what the leader sent cannot be taken: %s",
                partition.key,
                error,
                extra=partition.key._asdict(),
            )
            self._rest(partition.key)

    def _say_refusals(self) -> None:
        """One line for each error: a new topic may have a thousand partitions."""
        refused, self._refused = self._refused, {}
        for code, keys in refused.items():
            level = logging.INFO if code in _WAIT else logging.WARNING
            more = f" and {len(keys) - 1} more partitions" if len(keys) > 1 else ""
            logger.log(
                level,
                "%s%s: the leader answers %s",
                keys[0],
                more,
                error_name(code),
                extra=keys[0]._asdict(),
            )

    def _append(self, partition: Partition, data: PartitionData) -> None:
        log = partition.log
        assert log is not None
        if data.records:
            log.append_as_follower(cast("memoryview", data.records), now_ms=self._now_ms())
        is_behind = log.log_end_offset < data.high_watermark
        self._note_copied(partition.key, len(data.records or b""), is_behind)
        before = log.high_watermark
        log.update_high_watermark(max(before, min(data.high_watermark, log.log_end_offset)))
        if log.log_start_offset < data.log_start_offset <= log.high_watermark:
            log.delete_records_before(data.log_start_offset)
        if log.high_watermark != before:
            # Consumers may read from followers (KIP-392).
            self._replica_manager.complete_delayed_requests(partition)

    async def _cut(self, partition: Partition, leader_epoch: int, leader_end: int) -> None:
        """Cuts the log to the last point at which it agrees with the leader's."""
        log = partition.log
        assert log is not None
        own_epoch, own_end = log.end_offset_for_epoch(leader_epoch)
        if own_epoch < 0:
            target = leader_end
        elif own_epoch != leader_epoch:
            # We do not know the leader's epoch: ours before it ends where the next one begins.
            target = min(own_end, leader_end, log.log_end_offset)
        else:
            target = min(own_end, leader_end)
        target = min(target, log.log_end_offset)
        if target < log.high_watermark:
            logger.warning(
                "%s: cut to %d, below its high watermark %d",
                partition.key,
                target,
                log.high_watermark,
                extra=partition.key._asdict(),
            )
        logger.info(
            "%s: diverges from its leader, cut to offset %d",
            partition.key,
            target,
            extra=partition.key._asdict(),
        )
        await self._truncate_in_steps(partition, log, target)

    async def _find_range(self, partition: Partition, asked: Wanted) -> None:
        """Our end is outside of the leader's log: cut back to its end, or start at its start."""
        latest = await self._leader_offset(partition.key, asked, _LATEST)
        log = partition.log
        if log is None or partition.leader_epoch != asked.leader_epoch:
            return
        if latest < log.log_end_offset:
            logger.warning(
                "%s: the leader ends at %d, we at %d: it was elected out of sync; cut back",
                partition.key,
                latest,
                log.log_end_offset,
                extra=partition.key._asdict(),
            )
            await self._truncate_in_steps(partition, log, latest)
            return
        earliest = await self._leader_offset(partition.key, asked, _EARLIEST_LOCAL)
        if partition.leader_epoch != asked.leader_epoch or partition.log is not log:
            return
        if earliest > log.log_end_offset:
            logger.info(
                "%s: starts anew at %d", partition.key, earliest, extra=partition.key._asdict()
            )
            log.truncate_fully_and_start_at(earliest)
            self._replica_manager.on_truncated(log)
        else:
            log.delete_records_before(min(max(earliest, log.log_start_offset), log.high_watermark))

    async def _leader_offset(self, key: TopicPartition, asked: Wanted, timestamp: int) -> int:
        connection = await self._connect()
        version = min(9, connection.versions[2][1])
        if timestamp == _EARLIEST_LOCAL and version < _EARLIEST_LOCAL_SINCE:
            timestamp = -2
        row = ListOffsetsPartition(key.partition, timestamp=timestamp)
        if version >= 4:
            row.current_leader_epoch = asked.leader_epoch
        request = ListOffsetsRequest(
            replica_id=self._settings.broker_id, topics=[ListOffsetsTopic(key.topic, [row])]
        )
        response = cast(
            "ListOffsetsResponse",
            await connection.request(request, self._settings.timeout_ms, version=version),
        )
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise ConnectionError(
                f"{key}: the leader answers {error_name(found.error_code)} to ListOffsets"
            )
        return found.offset

    async def _truncate_in_steps(self, partition: Partition, log: Log, offset: int) -> None:
        leader_epoch = partition.leader_epoch
        for _ in log.prepare_truncation(offset):
            await asyncio.sleep(0)
            if partition.leader_epoch != leader_epoch or partition.log is not log:
                return  # another leader says where to truncate, or there is nothing to truncate
        self._truncate(log, offset)

    def _truncate(self, log: Log, offset: int) -> None:
        # With no record to cut there may still be an epoch to forget: that of a deposed leader
        # who never wrote anything in it.
        if log.truncate_to(offset):
            self._replica_manager.on_truncated(log)

    def _rest(self, key: TopicPartition) -> None:
        now = asyncio.get_running_loop().time()
        self._resting[key] = now + self._settings.backoff_ms / 1000

    # -- the connection -------------------------------------------------------------------------

    async def _connect(self) -> AsyncConnection:
        connection = self._connection
        if connection is not None and connection.is_usable:
            return connection
        self._session.reset()
        connection = self._connection = await self._settings.connect(*self._address)
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._session.reset()
