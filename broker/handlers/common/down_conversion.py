"""Down-conversion of record batches for Fetch below version 4 (`message.downconversion.enable`).

Batches are converted in a worker thread, one partition after the other, each up to the requested
bytes. So the memory for one request is bounded by its `max_bytes` (and `fetch.max.bytes`), and the
number of concurrent conversions by the worker pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.errors import RecordsError, UnsupportedCompressionError

if TYPE_CHECKING:
    from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics
    from ottla.broker.replication.fetch_sessions import FetchResult
    from ottla.broker.requests.request_channel import RequestContext
    from ottla.protocol.messages.fetch import FetchResponse, PartitionData
    from ottla.storage.config import LogConfig
    from ottla.storage.files.open_files import FileSlice

logger = logging.getLogger("ottla.fetch")

_FIRST_WITH_BATCHES = 4
_FIRST_WITH_TIMESTAMPS = 2
_FIRST_WITH_ZSTD = 10


class DownConversion:
    """Converts the records of a Fetch response, then sends it."""

    def __init__(
        self,
        workers: WorkerPool,
        log_config: Callable[[str], LogConfig],
        has_log: Callable[[str, int], bool],
        statistics: BrokerTopicStatistics,
    ) -> None:
        """`has_log`: whether this broker has a replica of the partition."""
        self._statistics = statistics
        self._workers = workers
        self._log_config = log_config
        self._has_log = has_log

    def check(self, version: int, results: list[FetchResult], *, is_follower: bool) -> bool:
        """Sets errors for topics that clients of `version` cannot read.

        As in Kafka, such a client gets them from each replica, whether or not there are records,
        and a follower always gets its records. Returns whether the response has records that need
        to be converted.
        """
        needed = False
        for item, data in results:
            topic = item.topic
            if (
                topic is None
                or data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                or not self._has_log(topic, data.partition_index)
            ):
                continue
            config = self._log_config(topic)
            if config.compression_type == "zstd" and version < _FIRST_WITH_ZSTD:
                _set_error(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            elif version < _FIRST_WITH_BATCHES:
                is_old = config.record_magic <= _magic_of(version)
                if not (is_follower or is_old or config.message_downconversion_enable):
                    _set_error(data, ErrorCode.UNSUPPORTED_VERSION)
                elif data.records:
                    needed = True
        return needed

    def convert_and_respond(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: list[FetchResult],
    ) -> None:
        """Converts the records in a worker thread, then sends the response."""
        spawn(self._run(context, response, results), name="fetch-down-conversion")

    async def _run(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: list[FetchResult],
    ) -> None:
        try:
            await self._convert(context.header.api_version, results)
        except BaseException:
            context.close("down-conversion of a Fetch response failed")
            raise
        context.respond(response)

    async def _convert(self, version: int, results: list[FetchResult]) -> None:
        magic = _magic_of(version)
        for item, data in results:
            topic = item.topic
            if not data.records:
                continue
            try:
                converted = await self._workers.run(
                    _convert_slice,
                    data.records,
                    magic,
                    item.fetch_offset,
                    item.partition_max_bytes,
                    self._log_config(topic or "").record_magic <= magic,
                )
            except UnsupportedCompressionError:
                _set_error(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            except (RecordsError, OSError) as error:
                logger.error(
                    "Down-conversion of records of %s-%d failed: %s",
                    topic,
                    data.partition_index,
                    error,
                    extra={"topic": topic, "partition": data.partition_index},
                )
                _set_error(data, ErrorCode.CORRUPT_MESSAGE)
            else:
                data.records = converted.records
                self._statistics.count_down_conversion(
                    topic or "", converted.messages, converted.seconds, len(converted.records)
                )


class _Converted(NamedTuple):
    records: bytes
    messages: int
    seconds: float


def _magic_of(version: int) -> int:
    """The newest message format that a client of a version of Fetch below 4 reads."""
    return 1 if version >= _FIRST_WITH_TIMESTAMPS else 0


def _set_error(data: PartitionData, code: int) -> None:
    data.error_code = code
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    data.records = b""


def _convert_slice(
    records: FileSlice | bytes | memoryview,
    magic: int,
    first_offset: int,
    max_bytes: int,
    is_old: bool,
) -> _Converted:
    """`is_old`: records are stored in a format that the client reads, so that it may get the
    beginning of a message that is larger than its limit."""
    from ottla.protocol.records.convert import ConversionCount, down_convert
    from ottla.protocol.records.reader import iterate_entries

    started = perf_counter()
    content = records if isinstance(records, bytes | memoryview) else records.read()
    count = ConversionCount()
    chunks = down_convert(
        content, magic, first_offset=first_offset, max_bytes=max_bytes, count=count
    )
    converted = b"".join(chunks)
    if is_old and next(iterate_entries(content), None) is None:
        converted = bytes(content)
    return _Converted(converted, count.records, perf_counter() - started)
