"""Codecs: round trips, the framings of other clients, bounds on what comes out, damage.

Every test runs with cramjam and lz4, with cramjam alone, and with pyarrow in their place.
"""

import gzip
import tracemalloc
from collections.abc import Iterator

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    codec_name,
    compress,
    decompress,
)
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    RecordsError,
    UnsupportedCompressionError,
)
from tests.doubles.codec_libraries import NATIVE, hidden

COMPRESSED = (GZIP, SNAPPY, LZ4, ZSTD)
TEXT = b"".join(b"line %d of a text that repeats itself\n" % index for index in range(9000))


HIDDEN = {"cramjam and lz4": (), "cramjam": ("lz4", "lz4.frame"), "pyarrow": NATIVE}


@pytest.fixture(scope="module", params=HIDDEN, autouse=True)
def libraries(request: pytest.FixtureRequest) -> Iterator[None]:
    with hidden(*HIDDEN[request.param]):
        yield


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.binary(max_size=300), st.integers(0, 900))
def test_round_trip(codec: int, data: bytes, repeat: int) -> None:
    whole = data * repeat
    packed = compress(codec, whole)
    assert decompress(codec, packed, len(whole)) == whole
    assert decompress(codec, memoryview(bytearray(packed))) == whole


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [1, 100, 32 * 1024 + 1, 64 * 1024, 300_000])
def test_one_byte_more_than_allowed_is_refused(codec: int, size: int) -> None:
    data = TEXT[:size]
    packed = compress(codec, data)
    assert decompress(codec, packed, size) == data
    with pytest.raises(DecompressedTooLargeError, match=f"more than {size - 1} bytes"):
        decompress(codec, packed, size - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bombs_are_stopped_within_the_bound(codec: int) -> None:
    bomb = compress(codec, bytes(200_000_000))
    limit = 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError):
            decompress(codec, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit + 8 * len(bomb)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_noise_is_corrupt(codec: int, size: int) -> None:
    with pytest.raises(CorruptRecordError, match=codec_name(codec)):
        decompress(codec, b"\xfe" * size)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_cut_is_noticed_or_gives_a_prefix(codec: int) -> None:
    """Snappy's framing cannot tell a cut between blocks from the end."""
    packed = compress(codec, TEXT[:50_000])
    for size in [*range(40), len(packed) // 2, len(packed) - 5, len(packed) - 1]:
        try:
            found = decompress(codec, packed[:size])
        except CorruptRecordError:
            continue
        assert codec == SNAPPY
        assert TEXT.startswith(found)


@pytest.mark.parametrize("codec", [5, 6, 7, -1, 100])
def test_unknown_codecs(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(UnsupportedCompressionError):
            call(codec, b"")
    assert "unknown" in codec_name(codec)


def test_names() -> None:
    assert [codec_name(codec) for codec in range(5)] == list(CODEC_NAMES)
    assert decompress(NONE, memoryview(b"abc")) == b"abc"


@pytest.mark.parametrize(
    ("codec", "levels"), [(GZIP, (1, 9)), (LZ4, (4, 9, 12)), (ZSTD, (-5, 1, 19)), (SNAPPY, (1,))]
)
def test_levels(codec: int, levels: tuple[int, ...]) -> None:
    sizes = []
    for level in levels:
        packed = compress(codec, TEXT, level)
        assert decompress(codec, packed) == TEXT
        sizes.append(len(packed))
    assert len(set(sizes)) == len(sizes)


def test_gzip_of_several_members_is_one_stream() -> None:
    assert (
        decompress(GZIP, gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"c")) == b"abc"
    )
    with pytest.raises(DecompressedTooLargeError):
        decompress(GZIP, gzip.compress(b"ab") * 3, 5)
    with pytest.raises(CorruptRecordError):
        decompress(GZIP, gzip.compress(b"ab") + gzip.compress(b"cd" * 50)[:-3])


def test_gzip_has_bytes_behind_it() -> None:
    """Java's GZIPInputStream ignores what does not begin like a member, or is too short."""
    member = gzip.compress(b"ab")
    rests = (b"\0", b"rest", bytes(100), b"\x1f\x8b", gzip.compress(b"")[:18], b"\x1f\x8b\7" * 9)
    for rest in (*rests, b"\x1f\x8b\x08\xff" + bytes(30)):
        assert decompress(GZIP, member + rest) == b"ab"
        assert decompress(GZIP, member + member + rest) == b"abab"


def test_snappy_has_bytes_behind_it() -> None:
    """Java's SnappyInputStream ignores what is no size of a block."""
    for rest in (b"\0", b"ab", b"\xff\xff\xff"):
        assert decompress(SNAPPY, compress(SNAPPY, b"ab") + rest) == b"ab"
    with pytest.raises(CorruptRecordError):
        decompress(SNAPPY, compress(SNAPPY, b"ab") + b"abcd")


def test_snappy_raw_blocks_are_read_and_xerial_is_written() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(SNAPPY, raw) == TEXT
    framed = compress(SNAPPY, TEXT)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    first = int.from_bytes(framed[16:20], "big")
    assert len(bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first]))) == 32 * 1024


def test_snappy_streams_behind_each_other() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, b"ab") + compress(SNAPPY, b"cd")) == b"abcd"


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\x0f",  # says 4 GB
        b"\xff\xff\x03\x00",  # says 65535 bytes in one
        b"\x80\x80\x80\x80\x80\x80",  # a length without an end
    ],
)
def test_snappy_blocks_that_lie_about_their_size(block: bytes) -> None:
    with pytest.raises(RecordsError):
        decompress(SNAPPY, block)
    framed = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + len(block).to_bytes(4, "big")
    with pytest.raises(RecordsError):
        decompress(SNAPPY, framed + block)
    with pytest.raises(CorruptRecordError, match="beyond"):
        decompress(SNAPPY, framed + block[:-1])


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
def test_lz4_frames_of_other_clients(linked: bool, store_size: bool, block_size: int) -> None:
    packed = lz4.frame.compress(
        TEXT,
        block_size=block_size,
        block_linked=linked,
        store_size=store_size,
        content_checksum=True,
        block_checksum=True,
    )
    assert decompress(LZ4, packed) == TEXT
    # Kafka's reader takes one frame.
    for rest in (packed, packed[:-1], b"\0", b"garbage", bytes(50)):
        assert decompress(LZ4, packed + rest) == TEXT
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, packed[:-1])


def test_lz4_is_written_in_independent_blocks() -> None:
    """Java's reader takes no linked ones."""
    assert compress(LZ4, TEXT)[4] & 0x20


def test_lz4_with_the_checksum_of_magic_0() -> None:
    broken = compress(LZ4, TEXT, broken_lz4_checksum=True)
    right = compress(LZ4, TEXT)
    assert [
        place for place, pair in enumerate(zip(broken, right, strict=True)) if pair[0] != pair[1]
    ] == [6]
    assert decompress(LZ4, broken, broken_lz4_checksum=True) == TEXT
    assert decompress(LZ4, right, broken_lz4_checksum=True) == TEXT
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, broken)


@pytest.mark.parametrize("size", range(8))
def test_lz4_without_a_whole_header_and_the_checksum_of_magic_0(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(LZ4, compress(LZ4, TEXT)[:size], broken_lz4_checksum=True)


def test_zstd_streams_of_other_clients() -> None:
    import zstandard

    with_size = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    streaming = zstandard.ZstdCompressor(level=19).compressobj()
    without_size = streaming.compress(TEXT) + streaming.flush()
    skippable = (0x184D2A53).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"xyz"
    for packed in (with_size, without_size, skippable + with_size, with_size + without_size):
        found = decompress(ZSTD, packed)
        assert found in (TEXT, TEXT * 2)


def test_zstd_that_flushes_often_needs_more_than_the_first_guess() -> None:
    """Its blocks are tiny, so the bound from the headers is far above the content."""
    import zstandard

    writer = zstandard.ZstdCompressor().compressobj()
    packed = b""
    for index in range(2000):
        packed += writer.compress(b"%d" % index)
        packed += writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    packed += writer.flush()
    assert decompress(ZSTD, packed) == b"".join(b"%d" % index for index in range(2000))
    zeros = bytes(5_000_000)
    assert decompress(ZSTD, compress(ZSTD, zeros)) == zeros
