"""The records of a response, whatever they are, for a client that knows old formats only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.handlers.common.down_conversion import ConvertedRecords, DownConversion
from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics
from ottla.broker.replication.fetch_sessions import FetchItem
from ottla.broker.requests.memory_pool import Pool
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.convert import DEFAULT_CHUNK_BYTES
from ottla.protocol.records.errors import DecompressedTooLargeError, UnsupportedCompressionError
from ottla.protocol.records.reader import iterate_entries, read_records
from ottla.storage.files.fs import READ_ONLY, RealFileSystem
from ottla.storage.files.open_files import FileSlice, OpenFile
from tests.doubles.storage_logs import batch_of

ITEM: Any = SimpleNamespace(topic="t", partition=0, fetch_offset=0)


class Conversion(DownConversion):
    """With threads and memory of its own."""

    def __init__(self, limit: int = 64 << 20) -> None:
        self.pool = Pool("records")
        self.pool.limit = limit
        self.threads = WorkerPool(threads=1)
        super().__init__(
            self.threads, lambda _: None, lambda *_: True, BrokerTopicStatistics(), self.pool
        )  # type: ignore[arg-type]  # no settings are asked for

    def records(
        self, source: Any, item: FetchItem = ITEM, kept: list[ConvertedRecords] | None = None
    ) -> ConvertedRecords:
        return ConvertedRecords(self, item, source, 1, [] if kept is None else kept)


async def all_of(part: ConvertedRecords) -> list[bytes]:
    """The pieces that a socket would get."""
    pieces = []
    while part.length:
        piece = await part.next_bytes("client")
        assert 0 < len(piece) <= part.length
        part.length -= len(piece)
        pieces.append(piece)
    part.release()
    return pieces


@pytest.mark.parametrize("kind", ["bytes", "view of a chunk", "part of a file"])
async def test_records_of_each_kind(tmp_path: Path, kind: str) -> None:
    batch = bytes(batch_of(3))
    path = tmp_path / "segment"
    path.write_bytes(batch)
    records = {
        "bytes": batch,
        "view of a chunk": memoryview(batch),
        "part of a file": FileSlice(
            OpenFile(RealFileSystem(), str(path), READ_ONLY), 0, len(batch)
        ),
    }[kind]
    conversion = Conversion()
    converted = conversion.records(records)
    assert await converted.begin("client") > 0
    content = b"".join(await all_of(converted))
    assert [header.magic for _, header in iterate_entries(content)] == [1, 1, 1]
    assert conversion.pool.used == 0
    await conversion.threads.close()


def rows(count: int, size: int) -> list[Any]:
    return [(number, b"k", bytes([number % 251]) * size, []) for number in range(count)]


async def test_a_large_batch_is_converted_in_pieces_and_ends_with_a_message_that_is_cut_off() -> (
    None
):
    batch = build_batch(rows(2_000, 1_000))
    conversion = Conversion()
    converted = conversion.records(batch)
    await converted.begin("client")
    assert len(converted) == len(batch), "the length of what is stored"
    pieces = await all_of(converted)
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 2 * DEFAULT_CHUNK_BYTES
    content = b"".join(pieces)
    assert len(content) == len(batch)
    found = list(read_records(content))
    assert 1_900 < len(found) < 2_000, "messages of magic 1 are longer: the last ones do not fit"
    assert [row.value for row in found] == [row[2] for row in rows(2_000, 1_000)][: len(found)]
    await conversion.threads.close()


async def test_shorter_records_are_followed_by_the_head_of_one_that_does_not_fit() -> None:
    packed = build_batch(rows(50, 1_000), codec=1)
    marker = build_batch(
        [(1, b"\0\0\0\1", b"\0\0\0\0\0\0", [])], base_offset=50, transactional=True
    )
    control = bytearray(marker)
    control[22] |= 0x20
    conversion = Conversion()
    converted = conversion.records(bytes(packed) + bytes(control) * 20)
    size = await converted.begin("client")
    length = len(converted)
    content = b"".join(await all_of(converted))
    assert len(content) == length
    assert size < length
    assert len(list(read_records(content))) == 50
    rest = content[size:]
    assert rest[:8] == b"\xff" * 8
    assert int.from_bytes(rest[8:12], "big") > len(rest) - 12
    await conversion.threads.close()


async def test_the_first_batch_with_zstd_is_an_error_and_a_later_one_the_end() -> None:
    conversion = Conversion()
    zstd = build_batch(rows(3, 10), codec=4)
    with pytest.raises(UnsupportedCompressionError):
        await conversion.records(zstd).begin("client")
    converted = conversion.records(build_batch(rows(3, 10)) + zstd)
    await converted.begin("client")
    content = b"".join(await all_of(converted))
    assert len(list(read_records(content))) == 3
    await conversion.threads.close()


async def test_no_more_is_decompressed_than_there_is_memory() -> None:
    packed = build_batch(rows(3_000, 1_000), codec=1)
    small, large = Conversion(2 << 20), Conversion(32 << 20)
    with pytest.raises(DecompressedTooLargeError):
        await small.records(packed).begin("client")
    converted = large.records(packed)
    await converted.begin("client")
    assert len(list(read_records(b"".join(await all_of(converted))))) == 3_000
    for conversion in (small, large):
        assert conversion.pool.used == 0
        await conversion.threads.close()


@pytest.mark.parametrize("values", [(10, 3_000), (3_000, 10), (3_000, 3_000)])
async def test_who_waits_for_memory_holds_none(values: tuple[int, int]) -> None:
    """The second partition, or the rest of the first one, needs all of the memory, of which the
    first batch of the other one has a part."""
    conversion = Conversion(32 << 20)
    batches = [build_batch(rows(count, 1_000), codec=1) for count in values]
    began = 0
    all_began = asyncio.Event()

    async def send(client: str) -> None:
        nonlocal began
        kept: list[ConvertedRecords] = []
        parts = [conversion.records(build_batch(rows(3, 10)) + each, kept=kept) for each in batches]
        for part in parts:
            await part.begin(client)
            kept.append(part)
        began += 1
        if began == 2:
            assert conversion.pool.used > 0, "first batches are kept"
            all_began.set()
        await all_began.wait()
        for part in parts:
            assert len(list(read_records(b"".join(await all_of(part))))) >= 3

    async with asyncio.timeout(10):
        await asyncio.gather(send("a"), send("b"))
    assert conversion.pool.used == 0
    await conversion.threads.close()


async def test_a_conversion_that_fails_releases_the_memory_of_the_others() -> None:
    conversion = Conversion()
    parts = [conversion.records(bytes(batch_of(3))) for _ in range(2)]
    for part in parts:
        await part.begin("client")
    results: Any = [(ITEM, SimpleNamespace(records=part)) for part in parts]

    async def fail(*_: object) -> None:
        raise MemoryError

    conversion._begin = fail  # type: ignore[method-assign, assignment]
    closed: list[str] = []
    context: Any = SimpleNamespace(close=closed.append)
    with pytest.raises(MemoryError):
        await conversion._run(context, FetchResponse(), results)
    assert closed
    assert conversion.pool.used == 0
    await conversion.threads.close()
