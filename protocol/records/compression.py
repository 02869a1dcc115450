"""The four codecs of Kafka, each with a bound on the size of its output.

`compress` writes what Kafka's Java clients write (gzip, snappy in xerial framing, lz4 frames of
independent 64 KiB blocks, zstd); `decompress` reads what any client writes, and never allocates
more than `max_bytes` plus a constant for it.

gzip comes with Python. The packages cramjam (snappy, zstd) and lz4 are imported when a codec is
first used. Where lz4 is not installed, as it has no wheels for some Pythons, cramjam does its work,
more slowly. Where one is not installed, pyarrow does its work: the Spark connector runs in Python
workers that have pyarrow and need not have the others. Without any, a codec raises
CodecUnavailableError.

lz4 in messages of magic 0 has a header checksum that Kafka's first versions computed wrongly (over
the frame's magic number too) and that every client since then repeats: `broken_lz4_checksum`.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import (
    CodecUnavailableError,
    CorruptRecordError,
    DecompressedTooLargeError,
    UnsupportedCompressionError,
)

if TYPE_CHECKING:
    from mmap import mmap

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# Batches are at most some MB on the wire (message.max.bytes is 1 MB); ratios beyond 100 are rare.
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

DEFAULT_GZIP_LEVEL = -1
DEFAULT_LZ4_LEVEL = 9  # which means the fast compressor to Kafka; others are levels of lz4 HC
DEFAULT_ZSTD_LEVEL = 3

_PIECE_BYTES = 256 * 1024  # decompressed at a time where the size is not known before
_CRAMJAM_FIRST_BYTES = 1024 * 1024
# Much more is not copied in one go: that holds the interpreter's lock, and with it the loop of a
# broker whose worker thread is at it, where `bytes.join` lets go of it. And glibc gives what is
# larger than 32 MiB back to the system as soon as it is free.
_LARGE_BYTES = 33 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_MEMBER_BYTES = 19  # a header, a trailer and a byte
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version 1, compatible with 1
_XERIAL_BLOCK_BYTES = 32 * 1024
# Snappy's densest element makes 64 bytes out of 3; anything claiming more than this is a lie.
_SNAPPY_MAX_RATIO = 22
# A byte of a length in an lz4 block stands for 255 bytes of content at the most.
_LZ4_MAX_RATIO = 256


def codec_name(codec: int) -> str:
    """Kafka's name of a codec id, e.g. for `compression.type` and log lines."""
    return CODEC_NAMES[codec] if 0 <= codec < len(CODEC_NAMES) else f"unknown codec {codec}"


def compress(
    codec: int, data: Buffer, level: int | None = None, *, broken_lz4_checksum: bool = False
) -> bytes:
    """`data` in the framing of `codec`; `level` as Kafka's `compression.<codec>.level`."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _compress_gzip(data, level)
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, level, broken_lz4_checksum)
    if codec == ZSTD:
        return _compress_zstd(data, level)
    raise UnsupportedCompressionError(f"compression codec {codec} is not one of {CODEC_NAMES}")


def decompress(
    codec: int,
    data: Buffer,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    *,
    broken_lz4_checksum: bool = False,
) -> bytes:
    """The bytes that were compressed.

    Raises DecompressedTooLargeError when they are more than `max_bytes`, CorruptRecordError when
    `data` is no valid stream of the codec, UnsupportedCompressionError for an unknown codec, and
    CodecUnavailableError when no library for it is installed. With `broken_lz4_checksum` the
    header checksum of lz4 frames is not verified.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == LZ4:
        return _decompress_lz4(data, max_bytes, broken_lz4_checksum)
    if codec == ZSTD:
        return _decompress_zstd(data, max_bytes)
    raise UnsupportedCompressionError(f"compression codec {codec} is not one of {CODEC_NAMES}")


def _too_large(codec: int, max_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(
        f"{codec_name(codec)} data decompresses to more than {max_bytes} bytes, which is the limit"
    )


def _corrupt(codec: int, reason: object) -> CorruptRecordError:
    return CorruptRecordError(f"{codec_name(codec)} data cannot be decompressed: {reason}")


class _Output:
    """Yield the output of a decompressor in pieces, nearly always a single one.

    Others are put together in pages of the system, which are returned when they are freed;
    a hundred megabytes in pieces would be kept by the allocator of the thread.
    """

    def __init__(self, codec: int, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._first = b""
        self._pages: mmap | None = None
        self.size = 0

    @property
    def room(self) -> int:
        """The size of the next piece: one byte more than allowed reveals that it is too much."""
        return self._max_bytes - self.size + 1

    def add(self, piece: bytes) -> None:
        start = self.size
        self.size += len(piece)
        if self.size > self._max_bytes:
            raise _too_large(self._codec, self._max_bytes)
        if not start:
            self._first = piece
            return
        if self._pages is None:
            from mmap import mmap

            self._pages = mmap(-1, self._max_bytes)  # what is not written takes no memory
            self._pages[:start] = self._first
            self._first = b""
        self._pages[start : self.size] = piece

    def take(self) -> bytes:
        return self._first if self._pages is None else _copy(self._pages, self.size)


def _copy(pages: "mmap", size: int) -> bytes:
    if size <= _LARGE_BYTES:
        return pages[:size]
    step = -(-size // (size // _LARGE_BYTES))
    return b"".join([pages[start : min(start + step, size)] for start in range(0, size, step)])


# libraries -------------------------------------------------------------------------------------


@cache
def _library(name: str) -> Any:
    """The module, or None where it is not installed; cached, as a failing import is slow."""
    try:
        return import_module(name)
    except ImportError:
        return None


def _arrow(codec: int, package: str) -> Any:
    """The module of pyarrow's codecs; `package` is the one that would be used instead of it."""
    arrow_codecs = _library("ottla.protocol.records.arrow_codecs")
    if arrow_codecs is None or not arrow_codecs.is_available(codec_name(codec)):
        raise CodecUnavailableError(codec_name(codec), package)
    return arrow_codecs


def _decompress_by_arrow(codec: int, stream: Any, max_bytes: int, compressed_bytes: int) -> bytes:
    out = _Output(codec, max_bytes)
    while True:
        try:
            piece: bytes = stream.read(min(out.room, _guess(compressed_bytes)))
        except (OSError, ValueError) as error:  # as pyarrow raises them for damaged data
            raise _corrupt(codec, error) from None
        if not piece:
            return out.take()
        out.add(piece)


def _decompress_by_cramjam(
    codec: int,
    cramjam: Any,
    decompress_into: Any,
    data: Buffer,
    bound: int,
    max_bytes: int,
) -> bytes:
    """`bound` is large enough for the content, unless that is more than `max_bytes`."""
    from mmap import mmap

    # The bound is often a loose one: try with less first.
    room = min(bound, max(_CRAMJAM_FIRST_BYTES, 8 * len(data)))
    while True:
        # The system's pages are zeros already; a bytearray would be filled with them.
        out = bytearray(room) if room <= _CRAMJAM_FIRST_BYTES else mmap(-1, room)
        try:
            size: int = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise _corrupt(codec, error) from None
            if room >= bound:
                raise _too_large(codec, max_bytes) from None
            room = min(bound, 8 * room)
            continue
        if size > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(memoryview(out)[:size]) if isinstance(out, bytearray) else _copy(out, size)


# gzip ------------------------------------------------------------------------------------------


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    import zlib

    compressor = zlib.compressobj(DEFAULT_GZIP_LEVEL if level is None else level, wbits=31)
    return compressor.compress(data) + compressor.flush()


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """One or more gzip members behind each other. As Java's GZIPInputStream, ignores what is behind
    them and is too short for a member, or does not begin like one."""
    import zlib

    out = _Output(GZIP, max_bytes)
    rest: Buffer = data
    is_first = True
    while True:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                piece = member.decompress(rest, min(out.room, _guess(len(data))))
            except zlib.error as error:
                if not is_first and "header" in str(error):
                    return out.take()
                raise _corrupt(GZIP, error) from None
            out.add(piece)
            rest = member.unconsumed_tail
            if not piece and not rest and not member.eof:
                raise _corrupt(GZIP, "the stream ends too early")
        rest = member.unused_data
        is_first = False
        if len(rest) < _GZIP_MEMBER_BYTES or rest[:3] != _GZIP_MAGIC:
            return out.take()


# snappy ----------------------------------------------------------------------------------------


def _compress_snappy(data: Buffer) -> bytes:
    """Xerial framing: a header, then blocks of at most 32 KiB, each behind its compressed size."""
    cramjam = _library("cramjam")
    if cramjam is not None:
        compress_block = cramjam.snappy.compress_raw
    else:
        compress_block = _arrow(SNAPPY, "cramjam").compress_snappy_block
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(compress_block(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    """Xerial framing, also several streams behind each other; without its header, one raw block.

    As Java's SnappyInputStream, ignores up to three bytes behind the last block.
    """
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, max_bytes)
    blocks: list[bytes] = []
    room = max_bytes
    position = 0
    end = len(view)
    while end - position >= 4:
        if view[position : position + 8] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > end:
                raise _corrupt(SNAPPY, "the header is cut short")
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if position > end:
            raise _corrupt(SNAPPY, "a block reaches beyond the end")
        block = _decompress_snappy_block(view[start:position], room, max_bytes)
        room -= len(block)
        blocks.append(block)
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview, room: int, max_bytes: int) -> bytes:
    size = _snappy_size(block)
    if size > room:
        raise _too_large(SNAPPY, max_bytes)
    if size > len(block) * _SNAPPY_MAX_RATIO:
        raise _corrupt(SNAPPY, f"a block of {len(block)} bytes claims to hold {size}")
    cramjam = _library("cramjam")
    if cramjam is not None:
        try:
            return bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise _corrupt(SNAPPY, error) from None
    arrow_codecs = _arrow(SNAPPY, "cramjam")
    try:
        found: bytes = arrow_codecs.decompress_snappy_block(block, size)
    except (OSError, ValueError) as error:
        raise _corrupt(SNAPPY, error) from None
    return found


def _snappy_size(block: memoryview) -> int:
    """The size that a raw block claims in its first bytes: an unsigned varint of 32 bits."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80 and size < 1 << 32:
            return size
    raise _corrupt(SNAPPY, "a block does not begin with its size")


# lz4 -------------------------------------------------------------------------------------------


def _compress_lz4(data: Buffer, level: int | None, broken_checksum: bool) -> bytes:
    """A frame of independent 64 KiB blocks without a content size: what Java's reader can take."""
    frame = _library("lz4.frame")
    compressed: bytes
    if frame is not None:
        compressed = frame.compress(
            data,
            compression_level=0 if level in (None, DEFAULT_LZ4_LEVEL) else level,
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    else:
        wanted = None if level == DEFAULT_LZ4_LEVEL else level
        cramjam = _library("cramjam")
        if cramjam is not None:
            compressed = _compress_lz4_by_cramjam(cramjam, data, wanted)
        else:
            compressed = _arrow(LZ4, "lz4").compress_lz4_frame(data, wanted)
    if not broken_checksum:
        return compressed
    from ottla.protocol.records.frames import with_broken_checksum

    return with_broken_checksum(compressed)


def _compress_lz4_by_cramjam(cramjam: Any, data: Buffer, level: int | None) -> bytes:
    if level is not None:
        # A frame with checksums of blocks; its raw blocks know no levels.
        compressor = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    from ottla.protocol.records.frames import frame_of_blocks

    compress_block = cramjam.lz4.compress_block
    return frame_of_blocks(data, lambda content: bytes(compress_block(content, store_size=False)))


def _decompress_lz4(data: Buffer, max_bytes: int, broken_checksum: bool) -> bytes:
    """One frame. As Kafka's Lz4BlockInputStream, ignores what is behind it."""
    if broken_checksum:
        from ottla.protocol.records.frames import with_right_checksum

        data = with_right_checksum(data)
    if not len(data):
        raise _corrupt(LZ4, "there is no frame")
    frame = _library("lz4.frame")
    if frame is None:
        from ottla.protocol.records.frames import frame_end

        data = memoryview(data)[: frame_end(data)]
        if (cramjam := _library("cramjam")) is not None:
            bound = min(max_bytes + 1, _LZ4_MAX_RATIO * len(data))
            return _decompress_by_cramjam(
                LZ4, cramjam, cramjam.lz4.decompress_into, data, bound, max_bytes
            )
        stream = _arrow(LZ4, "lz4").open_stream("lz4", data)
        return _decompress_by_arrow(LZ4, stream, max_bytes, len(data))
    out = _Output(LZ4, max_bytes)
    decompressor = frame.LZ4FrameDecompressor()
    feed: Buffer = data
    while not decompressor.eof:
        try:
            piece: bytes = decompressor.decompress(feed, min(out.room, _guess(len(data))))
        except (RuntimeError, ValueError) as error:
            raise _corrupt(LZ4, error) from None
        out.add(piece)
        feed = b""
        if not piece and not decompressor.eof:
            raise _corrupt(LZ4, "the frame ends too early")
    return out.take()


def _guess(compressed_bytes: int) -> int:
    """The size of a piece: a library would allocate the whole bound."""
    return max(_PIECE_BYTES, 4 * compressed_bytes)


# zstd ------------------------------------------------------------------------------------------


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    level = DEFAULT_ZSTD_LEVEL if level is None else level
    cramjam = _library("cramjam")
    if cramjam is not None:
        return bytes(cramjam.zstd.compress(data, level))
    return bytes(_arrow(ZSTD, "cramjam").compress_zstd(data, level))


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    """Decompress into a buffer that is known to be large enough from the frame's block headers."""
    from ottla.protocol.records.frames import largest_content_bytes

    cramjam = _library("cramjam")
    arrow_codecs = _arrow(ZSTD, "cramjam") if cramjam is None else None
    largest = largest_content_bytes(data)
    if arrow_codecs is not None:
        return _decompress_by_arrow(
            ZSTD, arrow_codecs.open_stream("zstd", data), max_bytes, len(data)
        )
    into = cramjam.zstd.decompress_into
    return _decompress_by_cramjam(ZSTD, cramjam, into, data, min(largest, max_bytes + 1), max_bytes)
