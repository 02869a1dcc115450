"""The records of a response, whatever they are, for a client that knows old formats only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.handlers.common.down_conversion import ConvertedRecords, DownConversion
from ottla.broker.metrics.topic_statistics import BrokerTopicStatistics
from ottla.broker.replication.fetch_sessions import FetchItem
from ottla.broker.requests.memory_budget import Pool
from ottla.broker.runtime.tasks import WorkerPool
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

    def records(self, source: Any, item: FetchItem = ITEM) -> ConvertedRecords:
        return ConvertedRecords(self, item, source, 1)


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
