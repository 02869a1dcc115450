"""Fetched records as columns: what a reader needs that builds tables, not objects."""

from collections.abc import Callable
from itertools import compress as select

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.batch import check_crc as check_batch_crc
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.legacy import LegacyHeader
from ottla.protocol.records.reader import (
    absolute_offsets,
    absolute_timestamps,
    iterate_entries,
    read_entry,
    read_section,
)
from ottla.protocol.records.record import Headers


class Columns:
    """Lists of equal length, one element for each record, in the order of offsets.

    ``headers`` is None when no record has any. ``next_offset`` is where to read on: behind the last
    batch that was read, also when its records were markers or compacted away; None when there
    was no whole batch.
    """

    __slots__ = (
        "headers",
        "keys",
        "next_offset",
        "offsets",
        "timestamp_types",
        "timestamps",
        "values",
    )

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.timestamp_types: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers] | None = None
        self.next_offset: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def _extend_headers(self, headers: list[Headers] | None, before: int, count: int) -> None:
        if headers is None and self.headers is None:
            return
        if self.headers is None:
            self.headers = [[] for _ in range(before)]
        self.headers += [[] for _ in range(count)] if headers is None else headers

    def _keep_only(self, chosen: list[bool]) -> None:
        self.offsets = list(select(self.offsets, chosen))
        self.timestamps = list(select(self.timestamps, chosen))
        self.timestamp_types = list(select(self.timestamp_types, chosen))
        self.keys = list(select(self.keys, chosen))
        self.values = list(select(self.values, chosen))
        if self.headers is not None:
            kept = list(select(self.headers, chosen))
            self.headers = kept if any(kept) else None


def decode_columns(
    buffer: Buffer,
    *,
    from_offset: int = 0,
    up_to_offset: int | None = None,
    skip: Callable[[BatchHeader | LegacyHeader], bool] | None = None,
    check_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Columns:
    """The records with ``from_offset <= offset < up_to_offset`` in a buffer of batches of any
    magic.

    Control batches and batches for which ``skip`` returns true (those of aborted transactions) are
    left out; a batch cut off at the end is ignored. ``max_decompressed_bytes`` bounds each batch.
    Raises a RecordsError for a damaged batch.
    """
    columns = Columns()
    for position, header in iterate_entries(buffer):
        if up_to_offset is not None and _first_offset(header) >= up_to_offset:
            columns.next_offset = max(up_to_offset, from_offset)
            break
        columns.next_offset = header.next_offset
        if header.next_offset <= from_offset or header.is_control:
            continue
        if skip is not None and skip(header):
            continue
        if isinstance(header, BatchHeader):
            if check_crc:
                check_batch_crc(buffer, position, header)
            _add_batch(columns, buffer, position, header, max_decompressed_bytes)
        else:
            _add_legacy(columns, buffer, position, header, check_crc, max_decompressed_bytes)
    offsets = columns.offsets
    upper = up_to_offset if up_to_offset is not None else (1 << 63)
    if offsets and (offsets[0] < from_offset or offsets[-1] >= upper):
        columns._keep_only([from_offset <= offset < upper for offset in offsets])
    if up_to_offset is not None and columns.next_offset is not None:
        columns.next_offset = min(columns.next_offset, max(up_to_offset, from_offset))
    return columns


def _first_offset(header: BatchHeader | LegacyHeader) -> int:
    """The first offset; a compressed message set does not tell, so the least possible for it."""
    if isinstance(header, BatchHeader):
        return header.base_offset
    return 0 if header.codec else header.last_offset


def _add_batch(
    columns: Columns,
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    max_decompressed_bytes: int,
) -> None:
    section = read_section(buffer, position, header, max_decompressed_bytes)
    before = len(columns.offsets)
    count = len(section.keys)
    columns.offsets += absolute_offsets(header, section)
    columns.timestamps += absolute_timestamps(header, section)
    columns.timestamp_types += [header.timestamp_type] * count
    columns.keys += section.keys
    columns.values += section.values
    columns._extend_headers(section.headers, before, count)


def _add_legacy(
    columns: Columns,
    buffer: Buffer,
    position: int,
    header: LegacyHeader,
    check_crc: bool,
    max_decompressed_bytes: int,
) -> None:
    records = read_entry(
        buffer,
        position,
        header,
        check_crc=check_crc,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    before = len(columns.offsets)
    for offset, timestamp, timestamp_type, key, value, _ in records:
        columns.offsets.append(offset)
        columns.timestamps.append(timestamp)
        columns.timestamp_types.append(timestamp_type)
        columns.keys.append(key)
        columns.values.append(value)
    columns._extend_headers(None, before, len(records))
