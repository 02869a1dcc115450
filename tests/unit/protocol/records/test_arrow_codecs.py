"""pyarrow in the place of cramjam and lz4. test_compression.py runs with both as well."""

from __future__ import annotations

import random

import pyarrow
import pytest

from ottla.protocol.records import arrow_codecs
from ottla.protocol.records.compression import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    codec_name,
    compress,
    decompress,
)
from ottla.protocol.records.errors import CodecUnavailableError, DecompressedTooLargeError
from tests.doubles.codec_libraries import ARROW, NATIVE, hidden

CODECS = (SNAPPY, LZ4, ZSTD)
TEXT = b"".join(b"line %d of a text that repeats itself\n" % index for index in range(9000))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 70_000, 300_000])
def test_either_library_reads_what_the_other_writes(codec: int, size: int) -> None:
    for data in (TEXT[:size], random.Random(size).randbytes(size)):
        by_native = compress(codec, data)
        with hidden(*NATIVE):
            assert decompress(codec, by_native, len(data)) == data
            by_arrow = compress(codec, data)
        assert decompress(codec, by_arrow, len(data)) == data


@pytest.mark.parametrize(
    ("codec", "package"), [(SNAPPY, "cramjam"), (LZ4, "lz4"), (ZSTD, "cramjam")]
)
def test_without_any_library_the_error_names_codec_and_package(codec: int, package: str) -> None:
    packed = compress(codec, TEXT)
    name = codec_name(codec)
    text = (
        f"no library for the compression codec {name} is installed: install the package {package}, "
        f"or a pyarrow that was built with {name}"
    )
    with hidden(*NATIVE, ARROW):
        for call in (lambda: compress(codec, TEXT), lambda: decompress(codec, packed)):
            with pytest.raises(CodecUnavailableError) as caught:
                call()
            error = caught.value
            assert (str(error), error.codec, error.package) == (text, name, package)
        assert decompress(GZIP, compress(GZIP, TEXT)) == TEXT


def test_a_pyarrow_that_was_built_without_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_codecs, "is_available", lambda codec: codec != "lz4")
    with hidden(*NATIVE):
        with pytest.raises(CodecUnavailableError, match="the compression codec lz4 is"):
            compress(LZ4, TEXT)
        assert decompress(ZSTD, compress(ZSTD, TEXT)) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_pyarrow_decompresses_no_more_than_is_kept(codec: int) -> None:
    """What pyarrow allocates is not in Python's statistics."""
    with hidden(*NATIVE):
        bomb = compress(codec, bytes(200_000_000))
        pool = pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
        before = pyarrow.default_memory_pool()
        pyarrow.set_memory_pool(pool)
        try:
            with pytest.raises(DecompressedTooLargeError):
                decompress(codec, bomb, 2_000_000)
        finally:
            pyarrow.set_memory_pool(before)
    assert pool.max_memory() < 4_000_000


def test_frames_of_lz4_store_blocks_that_do_not_shrink() -> None:
    noise = random.Random(1).randbytes(150_000)
    assert len(arrow_codecs.compress_lz4_frame(noise, None)) == 7 + len(noise) + 3 * 4 + 4
