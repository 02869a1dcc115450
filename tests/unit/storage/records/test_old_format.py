"""Batches become messages of an old format, with the offsets of the log."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import UnsupportedCompressionError, UnsupportedFormatError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.storage.records.old_format import OldMessages, to_old_messages

NOW_MS = 1_700_000_000_000
ROWS = [(NOW_MS + n, b"k%d" % n, b"v%d" % n, []) for n in range(3)]


def converted(*batches: bytes, magic: int, log_append_time: int = -1) -> OldMessages:
    content = bytearray(b"".join(batches))
    positions = [sum(map(len, batches[:n])) for n in range(len(batches))]
    return to_old_messages(
        content,
        [(position, read_header(content, position)) for position in positions],
        magic,
        level_of=lambda codec: None,
        log_append_time=log_append_time,
        max_decompressed_bytes=1 << 20,
    )


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_and_records(magic: int, codec: int) -> None:
    batches = [build_batch(ROWS, codec=codec), build_batch(ROWS[:2], codec=codec)]
    buffer, entries = converted(*batches, magic=magic).assign(100)
    assert [each[:2] for each in entries] == [
        (position, header.size_in_bytes) for position, header in iterate_entries(buffer)
    ]
    assert [header.magic for _, header in iterate_entries(buffer)] == [magic] * len(entries)
    covered = [range(each.first_offset, each.last_offset + 1) for each in entries]
    assert [offset for each in covered for offset in each] == list(range(100, 105))
    assert len(entries) == (2 if codec else 5)
    records = [
        record
        for position, header in iterate_entries(buffer)
        for record in read_entry(buffer, position, header)  # checks the CRC
    ]
    assert [record.offset for record in records] == list(range(100, 105))
    assert [(each.key, each.value) for each in records] == [
        (key, value) for _, key, value, _ in [*ROWS, *ROWS[:2]]
    ]
    times = [row[0] for row in [*ROWS, *ROWS[:2]]] if magic else [-1] * 5
    assert [record.timestamp for record in records] == times


@pytest.mark.parametrize("codec", [0, 1])
def test_the_time_of_the_append(codec: int) -> None:
    old = converted(build_batch(ROWS, codec=codec), magic=1, log_append_time=NOW_MS + 9)
    buffer, entries = old.assign(7)
    assert old.log_append_time == NOW_MS + 9
    assert {each.max_timestamp for each in entries} == {NOW_MS + 9}
    for position, header in iterate_entries(buffer):
        assert header.timestamp_type == 1
        for record in read_entry(buffer, position, header):
            assert record.timestamp == NOW_MS + 9


@pytest.mark.parametrize("magic", [0, 1])
def test_what_the_formats_do_not_have(magic: int) -> None:
    idempotent = build_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=0)
    with pytest.raises(UnsupportedFormatError, match=f"idempotent .* magic {magic}"):
        converted(idempotent, magic=magic)
    with_headers = build_batch([(NOW_MS, None, b"v", [("h", b"x")])])
    with pytest.raises(UnsupportedFormatError, match=f"headers .* magic {magic}"):
        converted(with_headers, magic=magic)
    with pytest.raises(UnsupportedCompressionError, match=f"zstd .* magic {magic}"):
        converted(build_batch(ROWS, codec=4), magic=magic)
