from __future__ import annotations

import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.storage.remote.chunk_index import (
    MAX_INT32,
    Chunk,
    ChunkIndex,
    compress,
    decode_sizes,
    decompress,
    encode_sizes,
)
from ottla.storage.remote.remote_storage import RemoteStorageError

# From the tests of the plugin's ChunkSizesBinaryCodec: sizes, and the bytes of each but the last.
WIDTHS = [
    ([0, 1000, 2, 44002, 369], 2),
    ([MAX_INT32, MAX_INT32 - 1, MAX_INT32 - 2, 10], 1),
    ([1, 2, 3, MAX_INT32], 1),
    ([1, 0xFF + 10, 0xFF + 20, MAX_INT32], 2),
    ([1, 0xFFFF + 10, 0xFFFF + 20, MAX_INT32], 3),
    ([1, 0xFFFFFF + 10, 0xFFFFFF + 20, MAX_INT32], 4),
]


@pytest.mark.parametrize(("sizes", "width"), WIDTHS)
def test_sizes_in_as_few_bytes_as_the_plugin_needs(sizes: list[int], width: int) -> None:
    encoded = encode_sizes(sizes)
    assert len(encoded) == 4 + 4 + 1 + (len(sizes) - 1) * width + 4
    assert encoded[8] == width
    assert decode_sizes(encoded) == sizes


@settings(derandomize=True)
@given(st.lists(st.integers(0, MAX_INT32), min_size=1, max_size=50))
def test_sizes_are_read_back(sizes: list[int]) -> None:
    assert decode_sizes(encode_sizes(sizes)) == sizes


@settings(derandomize=True)
@given(st.binary(max_size=40))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        sizes = decode_sizes(data)
    except ValueError:
        return
    assert len(sizes) <= len(data)


def test_chunks_of_fixed_size() -> None:
    index = ChunkIndex.fixed(100, 250, 110, 80)
    assert [index.chunk(number) for number in range(len(index))] == [
        Chunk(0, 0, 100, 0, 110),
        Chunk(1, 100, 100, 110, 110),
        Chunk(2, 200, 50, 220, 80),
    ]
    assert index.object_size == 300


def test_chunks_of_variable_size() -> None:
    index = ChunkIndex(100, 250, [30, 20, 10], None)
    assert index.chunk(2) == Chunk(2, 200, 50, 50, 10)
    assert index.object_size == 60


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 1, [0]), (99, 101, [0, 1]), (0, 250, [0, 1, 2]), (100, 200, [1]), (249, 999, [2])],
)
def test_the_chunks_of_a_range(start: int, end: int, expected: list[int]) -> None:
    assert list(ChunkIndex.fixed(100, 250, 100, 50).chunk_numbers(start, end)) == expected


def test_a_range_after_the_end_has_no_chunks() -> None:
    index = ChunkIndex.fixed(100, 250, 100, 50)
    assert list(index.chunk_numbers(250, 300)) == []
    assert list(index.chunk_numbers(10, 10)) == []


def test_an_empty_file_has_an_empty_chunk() -> None:
    assert ChunkIndex.fixed(100, 0, 100, 0).chunk(0) == Chunk(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "sizes"),
    [
        (100, 250, [1, 2]),
        (100, 250, [1, 2, -3]),
        (0, 250, [1]),
        (100, MAX_INT32 + 1, [1]),
        (100, 250, [MAX_INT32, 1, 1]),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    chunk_size: int, file_size: int, sizes: list[int]
) -> None:
    with pytest.raises(ValueError, match=r"chunk|GiB"):
        ChunkIndex(chunk_size, file_size, sizes, None)


def test_no_memory_for_an_index_with_too_many_chunks() -> None:
    with pytest.raises(ValueError, match="at most"):
        ChunkIndex.fixed(1, MAX_INT32, 1, 1)


def test_a_frame_says_the_size_of_its_content() -> None:
    frame = compress(b"content" * 1000)
    assert zstandard.frame_content_size(frame) == 7000
    assert decompress(frame, 7000) == b"content" * 1000


def test_a_larger_content_is_not_decompressed() -> None:
    with pytest.raises(ValueError, match="expected at most 6999"):
        decompress(compress(bytes(7000)), 6999)


def test_a_frame_without_a_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"content")
    with pytest.raises(ValueError, match="expected at most"):
        decompress(frame, 100)


@pytest.mark.parametrize("frame", [b"", b"no frame", compress(b"content" * 9)[:-3]])
def test_a_damaged_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="compressed chunk"):
        decompress(frame, 100)


def test_without_the_package_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RemoteStorageError, match=r"pip install 'ottla\[tiered\]'"):
        compress(b"")
