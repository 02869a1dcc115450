import logging

import pytest

from ottla.broker.coordination.stored_records import StoredRecords, UnreadableRecord
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record

logger = logging.getLogger("ottla.test")


def batch(*keys: bytes) -> bytes:
    return build_batch([(0, key, b"value", None) for key in keys])


def test_records_are_replayed_in_order() -> None:
    stored = StoredRecords("__topic", 3, "everything", logger)
    found: list[Record] = []
    chunks = iter([memoryview(batch(b"a", b"b")), memoryview(batch(b"c"))])
    assert len(list(stored.replay(chunks, found.append))) == 3 + 2, "after records and chunks"
    assert [record.key for record in found] == [b"a", b"b", b"c"]
    assert (stored.skipped, stored.describe()) == (0, "")


def test_what_cannot_be_read_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredRecords("__topic", 3, "everything", logger)
    found: list[bytes | None] = []

    def replay(record: Record) -> None:
        if record.key == b"bad":
            raise UnreadableRecord("no such key")
        found.append(record.key)

    damaged = bytearray(batch(b"x"))
    damaged[-3:] = b"\xff\xff\xff"
    chunks = [batch(b"a", *[b"bad"] * 20, b"b"), bytes(damaged), batch(b"c")]
    for _ in stored.replay(map(memoryview, chunks), replay):
        pass
    assert found == [b"a", b"b", b"c"]
    assert stored.describe() == f", {stored.skipped} unreadable records"
    assert stored.skipped == 21
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "Loading everything from __topic-3: skipping a record: no such key"
    assert len(lines) == 10
