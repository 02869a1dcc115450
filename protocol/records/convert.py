"""Turning records of one magic into another, up for old producers and down for old consumers.

Going down loses headers, producer fields and leader epochs, and timestamps too for magic 0;
control batches vanish, since old consumers would take them for data. Nothing here holds more than
one batch, decompressed, at a time.
"""

from collections.abc import Callable, Iterator

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    BatchHeader,
    read_header,
    read_size,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, NONE, ZSTD
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    RecordsError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from ottla.protocol.records.legacy import LegacyHeader, build_message_set
from ottla.protocol.records.reader import as_records, iterate_entries, read_entry
from ottla.protocol.records.record import Record
from ottla.protocol.records.section import decode_section
from ottla.protocol.records.varint import read_varint

DEFAULT_CHUNK_BYTES = 128 * 1024  # of converted records; about what one socket write takes at best

# Records of an uncompressed batch are read and converted in windows of this length, or one by one
# if they are longer.
_WINDOW_BYTES = 128 * 1024
#: Returns the bytes of what is converted: position, length. Fewer bytes only at the end.
ReadAt = Callable[[int, int], Buffer]


class DownConverter:
    """Converts records for a consumer that knows magics up to `to_magic`, piece by piece (KIP-283).

    Between two calls of `next` it holds none of them: uncompressed batches are read and converted
    in windows, compressed ones each as a whole. Records of uncompressed batches before
    `first_offset` are left out, as old librdkafka needs it. Batches that are old enough already go
    through as they are. No CRC is checked: the log did that on the way in. A batch cut off at the
    end is skipped.
    """

    __slots__ = (
        "_ended",
        "_first_offset",
        "_has_some",
        "_index",
        "_inner",
        "_position",
        "_read",
        "_size",
        "_to_magic",
        "records",
    )

    def __init__(self, read: ReadAt, size: int, to_magic: int, first_offset: int = 0) -> None:
        """`size`: the length of all that `read` returns."""
        self._read = read
        self._size = size
        self._to_magic = to_magic
        self._first_offset = first_offset
        self._has_some = False
        self.restart()

    def restart(self) -> None:
        """Begin with the first batch again."""
        self.records = 0  # that were converted
        self._position = 0  # of a batch
        self._inner = 0  # what of it is converted, in bytes from its begin, and in records
        self._index = 0
        self._ended = False

    def next(
        self,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> bytes:
        """At least `chunk_bytes` of converted records, less at the end, then nothing.

        Raises UnsupportedCompressionError if the first batch is compressed with zstd, and what
        reading raises; the next call raises again. Before a later batch with zstd the records end,
        as those of Kafka's LazyDownConversionRecordsSend do: the consumer gets the error with its
        next request.
        """
        pieces: list[bytes] = []
        size = 0
        while size < chunk_bytes and not self._ended:
            try:
                piece = self._convert_next(max_decompressed_bytes)
            except UnsupportedCompressionError:
                if not (pieces or self._has_some):
                    raise
                self._ended = True
            except RecordsError:
                if not pieces:
                    raise
                break
            else:
                if piece:
                    pieces.append(piece)
                    size += len(piece)
        self._has_some = self._has_some or bool(pieces)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _convert_next(self, max_decompressed_bytes: int) -> bytes:
        """A piece of a batch, which may be empty."""
        position = self._position
        head = self._read(position, min(BATCH_OVERHEAD, self._size - position))
        if len(head) <= MAGIC_POSITION:
            self._ended = True
            return b""
        size = read_size(head, 0)
        magic = head[MAGIC_POSITION]
        if magic > 2:
            raise CorruptRecordError(f"the entry at position {position} has magic {magic}")
        if position + size > self._size:
            self._ended = True
            return b""
        if magic <= self._to_magic:
            piece = bytes(
                self._read(position + self._inner, min(size - self._inner, _WINDOW_BYTES))
            )
            self._advance(size, self._inner + len(piece))
            return piece
        if magic == 2:
            header = read_header(head, 0)
            if header.is_control or not header.record_count:
                self._advance(size, size)
                return b""
            if header.codec == NONE:
                return self._convert_window(header)
        entry = self._read(position, size)
        ((_, found),) = iterate_entries(entry)
        converted, count = _down_convert_entry(
            entry, 0, found, self._to_magic, self._first_offset, max_decompressed_bytes
        )
        self.records += count
        self._advance(size, size)
        return converted

    def _convert_window(self, header: BatchHeader) -> bytes:
        """Some records of an uncompressed batch."""
        size = header.size_in_bytes
        start = self._inner or BATCH_OVERHEAD
        window = bytes(self._read(self._position + start, min(size - start, _WINDOW_BYTES)))
        end, count = _whole_records(window, header.record_count - self._index)
        if not count:  # one record is longer, or nothing fits
            length, position = read_varint(window, 0) if window else (-1, 0)
            end, count = position + length, 1
            if length < 0 or end > size - start:
                raise InvalidRecordError("a record reaches beyond its batch")
            window = bytes(self._read(self._position + start, end))
        if (self._index + count == header.record_count) != (start + end == size):
            raise InvalidRecordError("the records of a batch do not end where the batch does")
        section = decode_section(window, 0, end, count)
        records = [
            record for record in as_records(header, section) if record.offset >= self._first_offset
        ]
        self._index += count
        self._advance(size, start + end)
        self.records += len(records)
        if not records:
            return b""
        return build_message_set(
            records,
            magic=self._to_magic,
            timestamp_type=header.timestamp_type,
            log_append_time=header.max_timestamp,
        )

    def _advance(self, size: int, inner: int) -> None:
        """So much of the batch at hand, which has `size` bytes, is converted."""
        if inner < size:
            self._inner = inner
        else:
            self._position += size
            self._inner = self._index = 0


def _whole_records(window: bytes, most: int) -> tuple[int, int]:
    """The end of the last whole record of a window, and how many there are, `most` at most."""
    end = count = 0
    size = len(window)
    while count < most and end < size:
        try:
            length, position = read_varint(window, end)
        except IndexError:  # the length is cut off
            break
        if length < 0 or position + length > size:
            break
        end = position + length
        count += 1
    return end, count


def down_convert(
    buffer: Buffer,
    to_magic: int,
    *,
    first_offset: int = 0,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[bytes]:
    """The records of `buffer` by chunks; see `DownConverter`."""
    converter = DownConverter(
        lambda position, length: buffer[position : position + length],
        len(buffer),
        to_magic,
        first_offset,
    )
    while chunk := converter.next(chunk_bytes, max_decompressed_bytes):
        yield chunk


def _down_convert_entry(
    buffer: Buffer,
    position: int,
    header: BatchHeader | LegacyHeader,
    to_magic: int,
    first_offset: int,
    max_decompressed_bytes: int,
) -> tuple[bytes, int]:
    """The messages of a batch and their number."""
    if header.is_control:
        return b"", 0
    if header.codec == ZSTD:
        raise UnsupportedCompressionError(
            f"records compressed with zstd cannot be converted to magic {to_magic}; "
            "the consumer needs Fetch version 10 or later"
        )
    records = read_entry(
        buffer,
        position,
        header,
        check_crc=False,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    if header.codec == NONE:
        records = [record for record in records if record.offset >= first_offset]
    if not records:
        return b"", 0
    converted = build_message_set(
        records,
        magic=to_magic,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=header.max_timestamp,
    )
    return converted, len(records)


def read_message_set(
    buffer: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> tuple[int, int, list[Record]]:
    """(magic, codec, records) of what an old producer sent: a whole message set of magic 0 or 1.

    Checks every CRC. A compressed set must be the only entry, all entries must have one magic, and
    nothing may follow. `max_decompressed_bytes` bounds the sum. Raises a RecordsError.
    """
    records: list[Record] = []
    magic = codec = -1
    room = max_decompressed_bytes
    for position, header in iterate_entries(buffer, allow_partial=False):
        if not isinstance(header, LegacyHeader):
            raise InvalidRecordError("a record batch of magic 2 is among older messages")
        if magic not in (-1, header.magic):
            raise InvalidRecordError(f"messages of magic {magic} and {header.magic} are mixed")
        if magic != -1 and (codec != NONE or header.codec != NONE):
            raise InvalidRecordError("a compressed message set is not alone")
        magic, codec = header.magic, header.codec
        found = read_entry(buffer, position, header, max_decompressed_bytes=max(room, 0))
        room -= sum(len(record.key or b"") + len(record.value or b"") for record in found)
        if room < 0:
            raise DecompressedTooLargeError(
                f"a message set holds more than {max_decompressed_bytes} bytes, which is the limit"
            )
        records.extend(found)
    if not records:
        raise InvalidRecordError("there are no messages at all")
    return magic, codec, records


def up_convert(
    buffer: Buffer,
    to_magic: int = 2,
    *,
    base_offset: int = 0,
    codec: int | None = None,
    level: int | None = None,
    timestamp_type: int = 0,
    log_append_time: int = -1,
    leader_epoch: int = NO_LEADER_EPOCH,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """One batch (or message set of magic 1) of what an old producer sent, as brokers store it.

    Offsets are assigned from `base_offset` on. `codec` None keeps the codec of the messages.
    With `timestamp_type=LOG_APPEND_TIME` the records get `log_append_time`; otherwise they
    keep their timestamps, -1 if they had none (magic 0). Raises as `read_message_set`.
    """
    magic, own_codec, records = read_message_set(
        buffer, max_decompressed_bytes=max_decompressed_bytes
    )
    if magic > to_magic:
        raise UnsupportedFormatError(f"messages of magic {magic} cannot become magic {to_magic}")
    return build_converted(
        records,
        to_magic,
        base_offset=base_offset,
        codec=own_codec if codec is None else codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time=log_append_time,
        leader_epoch=leader_epoch,
    )


def build_converted(
    records: list[Record],
    to_magic: int,
    *,
    base_offset: int,
    codec: int,
    level: int | None = None,
    timestamp_type: int = 0,
    log_append_time: int = -1,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """`records` as a batch or message set of `to_magic`, with consecutive new offsets."""
    if to_magic == 2:
        return build_batch(
            ((record.timestamp, record.key, record.value, record.headers) for record in records),
            base_offset=base_offset,
            codec=codec,
            level=level,
            leader_epoch=leader_epoch,
            timestamp_type=timestamp_type,
            log_append_time=log_append_time,
        )
    return build_message_set(
        [record._replace(offset=base_offset + index) for index, record in enumerate(records)],
        magic=to_magic,
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time=log_append_time,
    )
