"""Record batches for consumers that know only older formats (Fetch below version 4).

The batches are read and converted in a worker thread, one partition after the other, each to no
more than the client asked for: the memory that one old consumer costs is bounded by its own
`max_bytes` (and by `fetch.max.bytes`), and the number that convert at a time by the worker pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.errors import RecordsError, UnsupportedCompressionError

if TYPE_CHECKING:
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchResult
    from ottla.broker.requests.request_channel import RequestContext
    from ottla.protocol.messages.fetch import FetchResponse, PartitionData
    from ottla.storage.config import LogConfig
    from ottla.storage.files.open_files import FileSlice

logger = logging.getLogger("ottla.fetch")

_FIRST_WITH_BATCHES = 4
_FIRST_WITH_TIMESTAMPS = 2
_FIRST_WITH_ZSTD = 10


class DownConversion:
    """Converts the records of an answer, then sends it."""

    def __init__(self, workers: WorkerPool, log_config: Callable[[str], LogConfig]) -> None:
        self._workers = workers
        self._log_config = log_config

    def refuse(self, version: int, results: list[FetchResult]) -> bool:
        """Puts errors where a client of `version` cannot read a topic at all.

        Returns whether records are left that have to be converted.
        """
        needed = False
        for topic, _, data in results:
            if topic is None or not data.records:
                continue
            config = self._log_config(topic)
            if config.compression_type == "zstd" and version < _FIRST_WITH_ZSTD:
                _refuse(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            elif version < _FIRST_WITH_BATCHES:
                if config.message_downconversion_enable:
                    needed = True
                else:
                    _refuse(data, ErrorCode.UNSUPPORTED_VERSION)
        return needed

    def convert_and_respond(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: list[FetchResult],
        items: list[FetchItem],
    ) -> None:
        """Converts in a worker thread, then answers."""
        spawn(self._run(context, response, results, items), name="fetch-down-conversion")

    async def _run(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: list[FetchResult],
        items: list[FetchItem],
    ) -> None:
        try:
            await self._convert(context.header.api_version, results, items)
        except BaseException:
            context.close("the records could not be converted for an old consumer")
            raise
        context.respond(response)

    async def _convert(
        self, version: int, results: list[FetchResult], items: list[FetchItem]
    ) -> None:
        magic = 1 if version >= _FIRST_WITH_TIMESTAMPS else 0
        positions = {(topic, position.partition): position for topic, _, position in items}
        for topic, _, data in results:
            position = positions.get((topic, data.partition_index))
            if not data.records or position is None:
                continue
            try:
                data.records = await self._workers.run(
                    _convert_slice,
                    data.records,
                    magic,
                    position.fetch_offset,
                    position.partition_max_bytes,
                )
            except UnsupportedCompressionError:
                _refuse(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            except (RecordsError, OSError) as error:
                logger.error(
                    "%s-%d cannot be converted for an old consumer: %s",
                    topic,
                    data.partition_index,
                    error,
                    extra={"topic": topic, "partition": data.partition_index},
                )
                _refuse(data, ErrorCode.CORRUPT_MESSAGE)


def _refuse(data: PartitionData, code: int) -> None:
    data.error_code = code
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    data.records = b""


def _convert_slice(
    records: FileSlice | bytes, magic: int, first_offset: int, max_bytes: int
) -> bytes:
    from ottla.protocol.records.convert import down_convert

    content = records if isinstance(records, bytes) else records.read()
    chunks = down_convert(content, magic, first_offset=first_offset, max_bytes=max_bytes)
    return b"".join(chunks)
