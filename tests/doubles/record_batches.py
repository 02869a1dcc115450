"""The batches of a buffer, for tests that look at what is on disk or on the wire."""

from collections.abc import Iterator

from ottla.protocol.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, BatchHeader, read_header
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import CorruptRecordError


def iterate_batches(
    buffer: Buffer, position: int = 0, *, allow_partial: bool = True
) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch of magic 2 with its position; CRCs are left to the caller.

    Bytes of a batch cut off at the end are skipped, as Kafka's clients do with fetched data,
    or raise CorruptRecordError with ``allow_partial=False``. ``reader.iterate_entries`` takes any
    magic.
    """
    size = len(buffer)
    while size - position >= BATCH_OVERHEAD:
        header = read_header(buffer, position)
        end = position + header.batch_length + LOG_OVERHEAD
        if end > size:
            break
        yield position, header
        position = end
    if position != size and not allow_partial:
        raise CorruptRecordError(
            f"{size - position} bytes after the last whole record batch, at position {position}"
        )
