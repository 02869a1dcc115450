"""Down-conversion of record batches for Fetch below version 4 (`message.downconversion.enable`).

As in Kafka (KIP-283), records are converted as the socket takes them, about 128 KB at a time: a
client that does not read its response costs the memory of one piece. The length of a response is
sent before its records, so it must be known before they are converted: it is that of the stored
records, or of the first converted batch if that is longer. Converted records that are longer are
cut off; if they are shorter, the head of a message follows them that is longer than what is left.
Old consumers skip a message at the end that is cut off, and fetch it again.

A worker thread converts, with a lease of the memory for records. Who waits for a lease holds none:
else those that wait could wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.net.output import LazyPart
from ottla.broker.requests.memory_budget import client_of
from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import LOG_OVERHEAD, read_size
from ottla.protocol.records.convert import DEFAULT_CHUNK_BYTES, DownConverter
from ottla.protocol.records.errors import (
    DecompressedTooLargeError,
    RecordsError,
    UnsupportedCompressionError,
)
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
    from ottla.broker.requests.memory_pool import Client, Lease, Pool
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
        memory: Pool,
    ) -> None:
        """`has_log`: whether this broker has a replica of the partition. `memory`: for records that
        are being converted."""
        self._statistics = statistics
        self._memory = memory
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
        """Begin the conversion of each partition in a worker thread, then send the response."""
        spawn(self._run(context, response, results), name="fetch-down-conversion")

    async def _run(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: list[FetchResult],
    ) -> None:
        try:
            await self._begin(context, results)
        except BaseException:
            _release(results)
            context.close("down-conversion of a Fetch response failed")
            raise
        if context.client_gone:
            _release(results)
        context.respond(response)

    async def _begin(self, context: RequestContext, results: list[FetchResult]) -> None:
        magic = _magic_of(context.header.api_version)
        client = client_of(context.connection)
        kept: list[ConvertedRecords] = []
        kept_bytes = 0
        for item, data in results:
            topic = item.topic or ""
            if not data.records or context.client_gone:
                continue
            if self._log_config(topic).record_magic <= magic and await self._workers.run(
                _is_cut_off, data.records
            ):
                continue  # a client of that format may get the beginning of a long message
            # A response has no other kinds of records than these.
            converted = ConvertedRecords(self, item, data.records, magic, kept)  # type: ignore[arg-type]
            try:
                first = await converted.begin(client)
            except UnsupportedCompressionError:
                _set_error(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            except (RecordsError, OSError) as error:
                converted.log_failure(error)
                _set_error(data, ErrorCode.CORRUPT_MESSAGE)
            else:
                if not first:  # nothing that the client reads, or only the beginning of a batch
                    converted.release()
                    data.records = b""
                    continue
                data.records = converted
                if kept_bytes + first <= KEPT_BYTES:
                    kept_bytes += first
                    kept.append(converted)
                else:
                    converted.drop()

    async def convert(
        self,
        converter: DownConverter,
        topic: str,
        client: Client,
        chunk_bytes: int,
        drop_kept: Callable[[], None],
    ) -> tuple[bytes, Lease]:
        """The next chunk of `converter`, which is converted in a worker thread, and the lease of
        its memory. `drop_kept` releases what its response holds, before it waits. Raises what the
        converter raises."""
        pool = self._memory
        size = min(USUAL_BYTES, pool.limit)
        while True:
            lease = pool.lease(client, size)
            if lease is None:
                drop_kept()
                lease = await pool.leased(client, size)
            try:
                converted = await self._workers.run(_next, converter, chunk_bytes, size // COPIES)
            except DecompressedTooLargeError:
                lease.release()
                if size >= pool.limit or size >= MOST_BYTES:
                    raise
                size = min(pool.limit, MOST_BYTES)
                continue
            except BaseException:
                lease.release()
                raise
            lease.resize(len(converted.records))
            self._statistics.count_down_conversion(
                topic, converted.messages, converted.seconds, len(converted.records)
            )
            return converted.records, lease


# First chunks that are kept until they are sent, in one response; others are converted again.
KEPT_BYTES = 256 * 1024

# The memory of one conversion: what is decompressed, and as much again for each of these: the
# records, the messages, and all of them together.
COPIES = 4
# Enough for a window of an uncompressed batch, and for usual compressed ones.
USUAL_BYTES = 4 << 20
# Longer batches are not accepted from producers.
MOST_BYTES = COPIES * MAX_DECOMPRESSED_BYTES

# The head of a message that does not fit: an offset and a length. Zeros follow it.
_OVERFLOW = Struct(">qi")
_LEAST_BATCH_BYTES = 61
_ZEROS = bytes(DEFAULT_CHUNK_BYTES)


class ConvertedRecords(LazyPart):
    """The records of one partition, which are converted while they are sent."""

    __slots__ = (
        "_conversion",
        "_converter",
        "_first",
        "_has_overflowed",
        "_item",
        "_kept",
        "_source",
    )

    def __init__(
        self,
        conversion: DownConversion,
        item: FetchItem,
        source: FileSlice | bytes | bytearray | memoryview,
        magic: int,
        kept: list[ConvertedRecords],
    ) -> None:
        """`kept`: those of the same response whose first batch is kept until it is sent."""
        super().__init__(len(source))
        self._conversion = conversion
        self._item = item
        self._kept = kept
        self._source = source
        self._converter = DownConverter(
            partial(_read_at, source), len(source), magic, item.fetch_offset
        )
        self._first: bytes | None = None
        self._has_overflowed = False

    async def begin(self, client: Client) -> int:
        """Convert the first batch, so that its errors are known and the length of all; returns how
        many bytes it has."""
        first = self._first = await self._convert(client, 1)
        self.length = max(self.length, len(first))
        return len(first)

    def drop(self) -> None:
        """Convert the first batch again when it is sent."""
        self._first = None
        self.release()
        self._converter.restart()

    async def next_bytes(self, client: Client) -> bytes:
        content, self._first = self._first, None
        if content is None:
            self.release()
            try:
                content = await self._convert(client, DEFAULT_CHUNK_BYTES)
            except (RecordsError, OSError) as error:
                # The client gets the error when it fetches from there.
                self.log_failure(error)
        if content:
            return content if len(content) <= self.length else content[: self.length]
        if self._has_overflowed:
            return _ZEROS[: self.length]
        self._has_overflowed = True
        return _OVERFLOW.pack(-1, max(self.length + 1, _LEAST_BATCH_BYTES))[: self.length]

    async def _convert(self, client: Client, chunk_bytes: int) -> bytes:
        content, self.lease = await self._conversion.convert(
            self._converter, self._item.topic or "", client, chunk_bytes, self._drop_kept
        )
        return content

    def _drop_kept(self) -> None:
        for each in self._kept:
            if each._first is not None:
                each.drop()
        self._kept.clear()

    def log_failure(self, error: Exception) -> None:
        """Records could not be converted."""
        topic, partition = self._item.topic, self._item.partition
        logger.error(
            "Down-conversion of records of %s-%d failed: %s",
            topic,
            partition,
            error,
            extra={"topic": topic, "partition": partition},
        )


class _Converted(NamedTuple):
    records: bytes
    messages: int
    seconds: float


def _release(results: list[FetchResult]) -> None:
    """The response is not sent."""
    for _, data in results:
        if isinstance(data.records, ConvertedRecords):
            data.records.release()


def _magic_of(version: int) -> int:
    """The newest message format that a client of a version of Fetch below 4 reads."""
    return 1 if version >= _FIRST_WITH_TIMESTAMPS else 0


def _set_error(data: PartitionData, code: int) -> None:
    data.error_code = code
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    data.records = b""


def _read_at(
    source: FileSlice | bytes | bytearray | memoryview, position: int, length: int
) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source[position : position + length])
    return source.part(position, length).read()


def _next(converter: DownConverter, chunk_bytes: int, max_decompressed_bytes: int) -> _Converted:
    """In a worker thread."""
    started, before = perf_counter(), converter.records
    content = converter.next(chunk_bytes, max_decompressed_bytes)
    return _Converted(content, converter.records - before, perf_counter() - started)


def _is_cut_off(source: FileSlice | bytes | bytearray | memoryview) -> bool:
    """Whether not even the first batch or message is whole."""
    head = _read_at(source, 0, LOG_OVERHEAD)
    return len(head) < LOG_OVERHEAD or read_size(head, 0) > len(source)
