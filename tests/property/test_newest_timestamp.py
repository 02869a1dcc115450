"""Whatever the header of a batch says, the log has the newest timestamp of its records.

Some producers leave it out of the header (Sarama up to 1.45.0), others may say 2100. Offsets by
time, retention, rolls and remote segments depend on it.
"""

from __future__ import annotations

from random import Random

import pytest

from ottla.protocol.records.batch import check_crc, patch_max_timestamp, read_header
from ottla.protocol.records.reader import read_records
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation import validate_records
from tests.doubles.storage_logs import NOW_MS, NewRecord, batch_of, new_log

CODECS = range(5)
YEAR = 365 * 86_400_000
SETTINGS: list[dict[str, object]] = [
    {},
    {"cleanup_policy": ("compact",)},
    {"message_timestamp_before_max_ms": YEAR},
    {"message_timestamp_after_max_ms": YEAR},
    {"message_timestamp_type": "LogAppendTime"},
    {"compression_type": "lz4"},
    {"compression_type": "uncompressed"},
]
COUNTS = (1, 2, 7, 8, 9, 63, 64, 65, 300)


def records(random: Random, count: int) -> list[NewRecord]:
    step = random.choice((0, 0, 1, 30, 90_000))
    times = [NOW_MS + number * step for number in range(count)]
    if random.random() < 0.5:
        random.shuffle(times)
    sizes = random.choice(((20,), (0, 20, 200)))
    return [(time, b"k%d" % n, bytes(random.choice(sizes)), []) for n, time in enumerate(times)]


def lies(newest: int) -> list[int]:
    """What a header says in place of `newest`."""
    in_2100 = 4_102_444_800_000
    return [newest, -1, in_2100, newest + 1, newest - 1, newest + 3_600_000, 0, 2**63 - 1, -(2**63)]


def lying(content: list[NewRecord], max_timestamp: int, codec: int, random: Random) -> bytearray:
    producer = {}
    if random.random() < 0.3:
        producer = {"producer_id": random.randrange(1 << 40), "producer_epoch": 0}
        producer["base_sequence"] = 0
    batch = batch_of(content, codec=codec, **producer)
    patch_max_timestamp(batch, 0, 0, max_timestamp)
    return batch


def check(log: Log, content: list[NewRecord], base: int) -> None:
    (stored,) = log.batches(base)
    header = read_header(stored)
    check_crc(stored, 0, header)
    stamped = log.config.message_timestamp_type == "LogAppendTime"
    newest = NOW_MS if stamped else max(each[0] for each in content)
    assert header.max_timestamp == newest
    found = [(each.offset - base, each.timestamp) for each in read_records(bytes(stored))]
    times = [NOW_MS if stamped else each[0] for each in content]
    assert found == list(enumerate(times))
    assert log.producer_state.end_offset == log.log_end_offset


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_the_log_has_the_newest_timestamp_of_the_records(
    settings: dict[str, object], codec: int
) -> None:
    random = Random(f"{settings} {codec}")
    log = new_log(**settings)
    newest_of_all = -1
    for count in COUNTS:
        content = records(random, count)
        newest = max(each[0] for each in content)
        for lie in lies(newest):
            batch = lying(content, lie, codec, random)
            base = log.log_end_offset
            if random.random() < 0.3:
                validated = validate_records(batch, log.config, AppendOrigin.CLIENT, NOW_MS)
                info = log.append_validated(validated, leader_epoch=0, now_ms=NOW_MS)
            else:
                info = log.append(batch, leader_epoch=0, now_ms=NOW_MS)
            check(log, content, base)
            stored = NOW_MS if "message_timestamp_type" in settings else newest
            assert info.max_timestamp == stored
            newest_of_all = max(newest_of_all, stored)
            assert log.local.active.newest()[0] == newest_of_all
    found = log.max_timestamp_offset()
    assert found is not None
    assert found[0] == newest_of_all
    assert log.offset_for_timestamp(newest_of_all + 1) is None


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_by_time_with_headers_without_a_newest_timestamp(codec: int) -> None:
    log = new_log(index_interval_bytes=0)
    random = Random(codec)
    for hour in range(6):
        content = [(NOW_MS + hour * 3_600_000 + n, b"k", b"v", []) for n in range(10)]
        log.append(lying(content, -1, codec, random), leader_epoch=0, now_ms=NOW_MS)
    for hour in range(6):
        for number in range(10):
            time = NOW_MS + hour * 3_600_000 + number
            assert log.offset_for_timestamp(time) == (time, hour * 10 + number, 0)
    assert log.max_timestamp_offset() == (NOW_MS + 5 * 3_600_000 + 9, 59, 0)
