"""`__remote_log_metadata` in memory, as `RemoteLogMetadataManager` uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
from ottla.broker.remote.metadata_topic import FetchedMetadata
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch
from ottla.storage.remote.remote_storage import RemoteStorageError


class MemoryMetadataTopic:
    """Partitions are lists of values. `fail` makes the next call of that name raise. Leaders in
    `hanging` do not respond to fetches until `respond` is called."""

    def __init__(self, count: int = 2) -> None:
        self.count: int | None = count
        self.leaders: dict[int, int | None] = {}
        self.values: dict[int, list[bytes]] = {index: [] for index in range(count)}
        self.starts: dict[int, int] = dict.fromkeys(range(count), 0)
        self.fail: dict[str, Exception] = {}
        self.batch_records = 2
        self.appended = asyncio.Event()
        self.fetched = asyncio.Event()
        self.hanging: set[int] = set()
        self._released = asyncio.Event()

    async def create(self) -> None:
        self._maybe_fail("create")

    def partition_count(self) -> int | None:
        return self.count

    def leader(self, partition: int) -> int | None:
        return self.leaders.get(partition, 1)

    async def append(self, partition: int, value: bytes) -> int:
        self._maybe_fail("append")
        self.values[partition].append(value)
        self.appended.set()
        return len(self.values[partition]) - 1

    async def offsets(self, leader: int, partition: int) -> tuple[int, int]:
        self._maybe_fail("offsets")
        return self.starts[partition], len(self.values[partition])

    async def fetch(self, leader: int, positions: Mapping[int, int]) -> dict[int, FetchedMetadata]:
        self._maybe_fail("fetch")
        self.fetched.set()
        found = {index: self._read(index, offset) for index, offset in positions.items()}
        if leader in self.hanging:
            await self._released.wait()
        return found

    def respond(self) -> None:
        """Ends what hangs, with the records that there were at its beginning."""
        self.hanging.clear()
        self._released.set()

    def _read(self, index: int, offset: int) -> FetchedMetadata:
        values = self.values[index]
        if not self.starts[index] <= offset <= len(values):
            return FetchedMetadata(ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        first = offset - offset % self.batch_records  # a batch may begin before the offset
        some = values[first : first + self.batch_records] if offset < len(values) else []
        if not some:
            return FetchedMetadata(ErrorCode.NONE, b"")
        batch = build_batch([(1_000, None, value, None) for value in some], base_offset=first)
        return FetchedMetadata(ErrorCode.NONE, bytes(batch))

    def _maybe_fail(self, name: str) -> None:
        problem = self.fail.pop(name, None)
        if problem is not None:
            raise problem


UNREACHABLE = RemoteStorageError("broker 1 cannot be reached")


async def read_once(manager: RemoteLogMetadataManager) -> bool:
    """One round to its end, of a manager that is not started. True if there were records."""
    reads = list(manager.start_reads())
    return any(await asyncio.gather(*reads))
