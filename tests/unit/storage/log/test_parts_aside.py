"""Whether there are records behind damage, wherever they begin."""

from __future__ import annotations

from random import Random

import pytest

from ottla.protocol.records.batch import BATCH_OVERHEAD
from ottla.storage.files.fs import CREATE_EMPTY, write_fully
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log import parts_aside
from ottla.storage.log.parts_aside import holds_records
from ottla.storage.log.segment_file import SegmentFile
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import batch_of

BATCH = bytes(batch_of(3, base_offset=7))


def file_with(content: bytes) -> SegmentFile:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    descriptor = fs.open("/d/f.log", CREATE_EMPTY)
    write_fully(fs, descriptor, content or b"", 0) if content else None
    fs.close(descriptor)
    return SegmentFile(fs, "/d/f.log", len(content), OpenFiles())


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1 << 20])
@pytest.mark.parametrize("before", [0, 1, 2, 5, 16, 17, 61, 99, 127, 128, 1000])
def test_a_batch_is_found_wherever_it_begins(
    monkeypatch: pytest.MonkeyPatch, before: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(parts_aside, "_CHUNK_BYTES", chunk_bytes)
    random = Random(before)
    for junk in (bytes(before), b"\2" * before, random.randbytes(before)):
        content = junk + BATCH
        assert holds_records(file_with(content))
        assert holds_records(file_with(content + b"..."))
        assert holds_records(file_with(content), before)
        assert not holds_records(file_with(content), before + 1)
        assert not holds_records(file_with(content[:-1]))
        damaged = content[:-1] + bytes([content[-1] ^ 1])
        assert not holds_records(file_with(damaged))


@pytest.mark.parametrize("size", [0, 1, BATCH_OVERHEAD - 1, BATCH_OVERHEAD, 10_000])
def test_there_is_none_in_zeros(size: int) -> None:
    assert not holds_records(file_with(bytes(size)))


def test_what_takes_too_long_to_find_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_aside, "_PLACES_MAX", 1000)
    assert not holds_records(file_with(b"\2" * 1000))
    assert holds_records(file_with(b"\2" * 1001))
    monkeypatch.setattr(parts_aside, "_CHECKSUM_BUDGET", 0)
    monkeypatch.setattr(parts_aside, "_CHUNK_BYTES", 200)
    header = bytearray(BATCH[:BATCH_OVERHEAD])
    header[8:12] = (190).to_bytes(4, "big")
    assert holds_records(file_with(bytes(header) * 10))


def test_messages_of_an_old_format_have_no_checksum_to_search_for() -> None:
    message = bytearray(BATCH[:40])
    message[8:12] = (28).to_bytes(4, "big")
    message[16] = 1
    assert holds_records(file_with(bytes(message) + b"anything"), 40)
    assert not holds_records(file_with(bytes(message) + bytes(100)), 40)
