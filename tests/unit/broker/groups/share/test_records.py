import pytest

from ottla.broker.groups.share import records
from ottla.broker.groups.share.records import (
    ShareRecord,
    UnreadableShareRecord,
    is_of_share_group,
    read_share_record,
)

TOPIC = bytes(range(16))

ALL = [
    records.member_record("g", "m", None, ("client", "/host"), ["b", "a"]),
    records.epoch_record("g", 3),
    records.target_epoch_record("g", 3),
    records.target_record("g", "m", {TOPIC: [0, 1]}),
    records.current_record("g", "m", (3, 2), {TOPIC: [0]}),
    records.state_partitions_record("g", {TOPIC: [1, 0]}, {TOPIC: "t"}),
    *(records.tombstone_record(kind, "g", "m") for kind in (10, 13, 14)),
    *(records.tombstone_record(kind, "g") for kind in (11, 12, 15)),
]


@pytest.mark.parametrize("record", ALL, ids=lambda record: f"{record.kind}")
def test_records_come_back(record: ShareRecord) -> None:
    key, value = record.encoded()
    assert key[:2] == bytes((0, record.kind))
    assert is_of_share_group(key)
    assert read_share_record(key, value) == record


def test_what_cannot_be_read() -> None:
    key, _ = records.epoch_record("g", 3).encoded()
    for broken_key, value in ((key, b"\0\7"), (key[:3], None), (b"\0\x20", None)):
        with pytest.raises(UnreadableShareRecord):
            read_share_record(broken_key, value)
    assert not is_of_share_group(b"\0\3")
