"""The snapshot file of the producers."""

import pytest

from ottla.storage.errors import CorruptFile
from ottla.storage.producer.producer_entry import AppendedBatch, ProducerEntry
from ottla.storage.producer.producer_snapshot import decode_snapshot, encode_snapshot


def entry(producer_id: int = 1000) -> ProducerEntry:
    made = ProducerEntry(producer_id)
    made.epoch = 2
    made.coordinator_epoch = 3
    made.last_timestamp = 1_700_000_000_000
    made.transaction_first_offset = 35
    made.batches.append(AppendedBatch(0, 6, 35, 41, 1_700_000_000_000))
    return made


def test_the_layout_is_kafkas() -> None:
    content = encode_snapshot([entry()])
    assert content[:2].hex() == "0001"
    assert content[6:10].hex() == "00000001"
    assert content[10:].hex() == (
        "00000000000003e8" "0002" "00000006" "0000000000000029" "00000006"
        "0000018bcfe56800" "00000003" "0000000000000023"
    )  # fmt: skip


def test_entries_come_back() -> None:
    bare = ProducerEntry(7)  # only a marker was written for it
    bare.epoch = 1
    bare.last_timestamp = 5
    found = list(decode_snapshot("x", encode_snapshot([entry(), bare])))
    assert repr(found) == repr([entry(), bare])


def test_only_the_last_batch_survives() -> None:
    made = entry()
    made.batches.append(AppendedBatch(7, 9, 50, 52, 1_700_000_000_000))
    (found,) = decode_snapshot("x", encode_snapshot([made]))
    assert found.batches == made.batches[1:]


def test_a_sequence_that_wrapped_around() -> None:
    made = entry()
    made.batches = [AppendedBatch(0x7FFFFFFE, 1, 10, 13, 1_700_000_000_000)]
    (found,) = decode_snapshot("x", encode_snapshot([made]))
    assert found.batches == made.batches


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda c: c[:5], "too short"),
        (lambda c: b"\x00\x02" + c[2:], "version 2"),
        (lambda c: c[:-1] + bytes([c[-1] ^ 1]), "checksum"),
        (lambda c: c[:-1], "checksum"),
    ],
)
def test_damage_is_noticed(damage: object, reason: str) -> None:
    content = damage(encode_snapshot([entry()]))  # type: ignore[operator]  # one of the functions
    with pytest.raises(CorruptFile, match=reason):
        decode_snapshot("x", content)


def test_no_producers_are_a_snapshot_too() -> None:
    assert list(decode_snapshot("x", encode_snapshot([]))) == []
