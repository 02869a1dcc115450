"""ListOffsets (2), versions 0 to 9: offsets by timestamp, and the earliest and latest ones.

Versions: 0 returns a list of offsets before a timestamp; 1 one offset with its timestamp; 2
isolation levels; 4 leader epochs; 7 the offset of the largest timestamp (-3); 8 the earliest local
offset (-4); 9 the latest tiered offset (-5). Any other negative timestamp has UNSUPPORTED_VERSION,
as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.replication.partition import READ_COMMITTED, Partition
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import TOPICS
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.storage.log.batch_times import BatchTimes, ReadBudgetExceeded, read_times
from ottla.storage.records.validation_budget import ValidationBudget

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.log.log import Log

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
# The version from which each special timestamp is known.
_KNOWN_FROM = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_CONSUMER = -1
_DEBUGGER = -2  # This replica id may read from any replica, up to the log end offset.

# How many large batches are read for one partition before the search continues without a bound. One
# is enough, except after compaction removed the records with the timestamps of batch headers.
_MAX_LARGE_BATCHES = 50

# How long one request searches remote storage; the default of Kafka 4's
# `remote.list.offsets.request.timeout.ms`.
_SEARCH_SECONDS = 30.0


class _Search(NamedTuple):
    """A search by timestamp that needs a batch which takes long to read."""

    topic: str
    requested: ListOffsetsPartition
    response: ListOffsetsPartitionResponse
    times: BatchTimes
    batch: ReadBudgetExceeded


class _SearchInRemoteStorage(Exception):
    """The record with a timestamp may be in remote storage."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.name)
        self.log = log


class _RemoteSearch(NamedTuple):
    """A search by timestamp that begins in remote storage."""

    topic: str
    requested: ListOffsetsPartition
    response: ListOffsetsPartitionResponse
    times: BatchTimes
    log: Log


class ListOffsetsHandler:
    """Reads the local logs; awaits the decompression of large batches and remote storage."""

    def __init__(
        self, replica_manager: ReplicaManager, workers: WorkerPool, now_ms: Callable[[], int]
    ) -> None:
        """`workers` decompress batches that would block the loop."""
        self._now_ms = now_ms
        self._replica_manager = replica_manager
        self._workers = workers

    def handle(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        version = context.header.api_version
        whole = ListOffsetsResponse()
        budget = ValidationBudget()
        later: list[_Search] = []
        remote: list[_RemoteSearch] = []
        seen: set[tuple[str, int]] = set()
        twice: set[tuple[str, int]] = set()
        if version >= 1:
            for topic in request.topics:
                for requested in topic.partitions:
                    key = (topic.name, requested.partition_index)
                    (twice if key in seen else seen).add(key)
        for topic in request.topics:
            found = ListOffsetsTopicResponse(topic.name)
            whole.topics.append(found)
            for requested in topic.partitions:
                response = ListOffsetsPartitionResponse(requested.partition_index)
                found.partitions.append(response)
                if (topic.name, requested.partition_index) in twice:
                    response.error_code = ErrorCode.INVALID_REQUEST
                    continue
                times = BatchTimes(budget)
                try:
                    self._response(request, version, topic.name, requested, response, times)
                except ReadBudgetExceeded as batch:
                    later.append(_Search(topic.name, requested, response, times, batch))
                except _SearchInRemoteStorage as search:
                    remote.append(_RemoteSearch(topic.name, requested, response, times, search.log))
                except Exception as error:
                    _set_error(response, error, version)
        if remote:
            return self._search_remote(request, version, whole, later, remote)
        if later:
            return self._finish(request, version, whole, later)
        return whole

    async def _search_remote(
        self,
        request: ListOffsetsRequest,
        version: int,
        whole: ListOffsetsResponse,
        later: list[_Search],
        searches: list[_RemoteSearch],
    ) -> ListOffsetsResponse:
        """Searches remote storage, and then the local log if all records there are older.

        All partitions together have the time of one: a store that does not respond gives the other
        partitions an error that clients retry.
        """
        remote = self._replica_manager.remote_fetches
        assert remote is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SEARCH_SECONDS
        for topic, requested, response, times, log in searches:
            try:
                found = await remote.offset_for_timestamp(
                    log, requested.timestamp, deadline - loop.time()
                )
                if found is None:
                    self._response(request, version, topic, requested, response, times, True)
                else:
                    _set_found(response, found, version)
            except ReadBudgetExceeded as batch:
                later.append(_Search(topic, requested, response, times, batch))
            except Exception as error:
                _set_error(response, error, version)
        return await self._finish(request, version, whole, later)

    async def _finish(
        self,
        request: ListOffsetsRequest,
        version: int,
        whole: ListOffsetsResponse,
        searches: list[_Search],
    ) -> ListOffsetsResponse:
        """Reads large batches in a worker thread; each search is repeated with their timestamps."""
        for topic, requested, response, times, needed in searches:
            batch: ReadBudgetExceeded | None = needed
            for number in range(_MAX_LARGE_BATCHES):
                assert batch is not None
                try:
                    times.add(batch.key, await self._workers.run(read_times, batch.content))
                    times.budget = ValidationBudget() if number < _MAX_LARGE_BATCHES - 1 else None
                    self._response(request, version, topic, requested, response, times, True)
                except ReadBudgetExceeded as another:
                    batch = another
                    continue
                except Exception as error:
                    _set_error(response, error, version)
                break
        return whole

    def _response(
        self,
        request: ListOffsetsRequest,
        version: int,
        topic: str,
        requested: ListOffsetsPartition,
        response: ListOffsetsPartitionResponse,
        times: BatchTimes,
        is_local_only: bool = False,
    ) -> None:
        timestamp = requested.timestamp
        if timestamp < 0 and version < _KNOWN_FROM.get(timestamp, 1 << 15):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        partition = self._replica_manager.partition(topic, requested.partition_index)
        leader_only = request.replica_id != _DEBUGGER
        log = partition.log_for(requested.current_leader_epoch, leader_only)
        if version == 0:
            response.old_style_offsets = offsets_before(
                log,
                timestamp,
                requested.max_num_offsets,
                self._now_ms(),
                is_consumer=request.replica_id == _CONSUMER,
            )
            return
        is_consumer = request.replica_id == _CONSUMER
        if not is_consumer:
            end = log.log_end_offset
        elif request.isolation_level == READ_COMMITTED:
            end = log.last_stable_offset
        else:
            end = log.high_watermark
        if (
            timestamp >= 0
            and log.log_start_offset < log.local_log_start_offset
            and self._replica_manager.remote_fetches is not None
            and not is_local_only
        ):
            raise _SearchInRemoteStorage(log)
        found = _find(partition, log, timestamp, end, is_consumer, times)
        if found is None:
            response.timestamp = response.offset = response.leader_epoch = -1
        else:
            _set_found(response, found, version)


def _set_found(
    response: ListOffsetsPartitionResponse, found: tuple[int, int, int], version: int
) -> None:
    response.timestamp, response.offset, epoch = found
    if version >= 4:
        # The epoch of the record that was found, which may be older than the leader's.
        response.leader_epoch = epoch


def _set_error(response: ListOffsetsPartitionResponse, error: Exception, version: int) -> None:
    response.error_code = _code(error, version)
    response.offset = response.timestamp = response.leader_epoch = -1
    response.old_style_offsets = []


def _code(error: Exception, version: int) -> int:
    code = error_code(error)
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < 5:
        return ErrorCode.LEADER_NOT_AVAILABLE  # Old clients do not know the code.
    return code


def _find(
    partition: Partition,
    log: Log,
    timestamp: int,
    end: int,
    is_consumer: bool,
    times: BatchTimes,
) -> tuple[int, int, int] | None:
    """The requested (timestamp, offset, leader epoch), or None."""
    # After an election offsets must not go back for consumers: until the high watermark has reached
    # the start offset of this leader epoch, the new leader does not know what is committed.
    is_unavailable = is_consumer and partition.leader_epoch_start_offset > log.high_watermark
    if timestamp == LATEST:
        if is_unavailable:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return -1, end, partition.leader_epoch
    if log.config.record_magic == 0 and timestamp != EARLIEST:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Messages of message.format.version={log.config.message_format_version} have no time.",
        )
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset if timestamp == EARLIEST else log.local_log_start_offset
        return -1, start, log.leader_epochs.epoch_for_offset(start)
    if timestamp == LATEST_TIERED:
        highest = log.offsets.highest_remote_offset
        return None if highest < 0 else (-1, highest, log.leader_epochs.epoch_for_offset(highest))
    found = (
        log.max_timestamp_offset(times)
        if timestamp == MAX_TIMESTAMP
        else log.offset_for_timestamp(timestamp, times)
    )
    if found is not None and found[1] < end:
        return found
    if is_unavailable:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return None


def offsets_before(
    log: Log, timestamp: int, limit: int, now_ms: int, *, is_consumer: bool
) -> list[int]:
    """Version 0: up to `limit` starts of segments whose file was written last at `timestamp` or
    before, latest first, and the log end offset, which is of now. As
    `UnifiedLog.legacyFetchOffsetsBefore`."""
    segments = list(log.segments)
    offsets = [max(each.base_offset, log.log_start_offset) for each in segments]
    has_end = segments[-1].size > 0
    if timestamp == EARLIEST:
        offsets = offsets[:1]
    elif timestamp == LATEST or now_ms <= timestamp:
        if has_end:
            offsets.append(log.log_end_offset)
    else:
        while segments and segments[-1].modified_ms() > timestamp:
            segments.pop()
        offsets = offsets[: len(segments)]
    offsets = offsets[::-1][: max(limit, 0)]
    high_watermark = log.high_watermark
    if is_consumer and any(offset > high_watermark for offset in offsets):
        visible = [offset for offset in offsets if offset <= high_watermark]
        return [high_watermark, *visible]
    return offsets


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [
            ListOffsetsPartitionResponse(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(ListOffsetsTopicResponse(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.LIST_OFFSETS,
        ListOffsetsHandler.handle,
        check="list_offsets",
        errors=_error_rows,
        items=(TOPICS,),
    ),
)
