"""What a producer may send: one test for each rule, and the rewriting that settings ask for."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    LOG_APPEND_TIME,
    BatchHeader,
    patch_max_timestamp,
    read_header,
)
from ottla.protocol.records.builder import assemble_batch, build_batch, encode_record
from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from ottla.protocol.records.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from ottla.protocol.records.legacy import build_message_set, encode_message
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.config import LogConfig
from ottla.storage.errors import OffsetsOutOfOrder
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.batch_content import MAX_RECORDS_DECODED
from ottla.storage.records.validation import (
    CODECS,
    Accepted,
    assign,
    check_size,
    compression_cost,
    level_of,
    prepare_for_follower,
    target_codec,
    validate_records,
)
from ottla.storage.records.validation_budget import (
    KIB_COMPRESSED,
    KIB_COMPRESSED_WELL,
    ValidationBudget,
    ValidationBudgetExceeded,
)
from tests.doubles.record_batches import iterate_batches
from tests.doubles.storage_logs import NOW_MS, NewRecord, batch_of, marker

CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR


def prepare(
    content: bytes | bytearray, origin: AppendOrigin = CLIENT, **settings: object
) -> Accepted:
    validated = validate_records(bytearray(content), LogConfig(**settings), origin, NOW_MS)
    return assign(validated, leader_epoch=5, first_offset=100, now_ms=NOW_MS)


def headers(accepted: Accepted) -> list[BatchHeader]:
    return [header for _, header in iterate_batches(bytes(accepted.buffer))]


def assemble(content: bytes = bytes.fromhex("0e00000002610000"), /, **fields: int) -> bytes:
    values: dict[str, int] = {
        "base_offset": 0, "last_offset_delta": 0, "base_timestamp": NOW_MS,
        "max_timestamp": NOW_MS, "record_count": 1, "attributes": 0, **fields,
    }  # fmt: skip
    return assemble_batch(content, **values)


def test_offsets_and_epoch_are_assigned_in_place() -> None:
    content = batch_of(3)
    validated = validate_records(content, LogConfig(), CLIENT, NOW_MS)
    accepted = assign(validated, leader_epoch=5, first_offset=100, now_ms=NOW_MS)
    assert accepted.buffer is content
    header = read_header(content)
    assert (header.base_offset, header.partition_leader_epoch) == (100, 5)
    (batch,) = accepted.batches
    assert (batch.first_offset, batch.last_offset, batch.size) == (100, 102, len(content))
    assert [r.offset for r in read_records(content)] == [100, 101, 102]


def test_several_batches_get_offsets_one_after_the_other() -> None:
    accepted = prepare(batch_of(2) + batch_of(3) + batch_of(1))
    assert [(b.first_offset, b.last_offset) for b in accepted.batches] == [
        (100, 101), (102, 104), (105, 105),
    ]  # fmt: skip
    assert [h.base_offset for h in headers(accepted)] == [100, 102, 105]


@pytest.mark.parametrize("content", [b"", b"short", bytes(80), batch_of(1)[:-1]])
def test_damaged_bytes_are_refused(content: bytes) -> None:
    with pytest.raises((CorruptRecordError, InvalidRecordError)):
        prepare(content)


def test_a_wrong_checksum_is_refused() -> None:
    content = batch_of(1)
    content[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        prepare(content)


@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 60, 61, 100])
def test_a_batch_that_is_cut_off_behind_others_is_ignored(size: int) -> None:
    """As Kafka does, which old clients depend on."""
    accepted = prepare(batch_of(1) + batch_of(3) + batch_of(9)[:size])
    assert [each.last_offset for each in accepted.batches] == [100, 103]
    assert len(accepted.buffer) == len(batch_of(1) + batch_of(3))


@pytest.mark.parametrize(
    "rest", [bytes(12), bytes(40), (b"x" * 8) + bytes(3) + b"\x40" + b"\x07" * 9]
)
def test_other_bytes_behind_the_last_batch_are_refused(rest: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        prepare(batch_of(1) + rest)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 12, 17, 24, 27, -1])
def test_a_message_that_is_cut_off_behind_others_is_ignored(
    magic: int, codec: int, size: int
) -> None:
    old = [Record(i, NOW_MS if magic else -1, magic - 1, b"k", b"value", []) for i in range(2)]
    whole = build_message_set(old, magic=magic, codec=codec)
    cut = build_message_set(old[:1], magic=magic, codec=codec)[:size]
    (header,) = headers(prepare(whole + cut))
    assert (header.base_offset, header.record_count) == (100, 2)
    with pytest.raises(InvalidRecordError):
        prepare(cut)


def test_old_messages_are_not_stamped_by_their_producer() -> None:
    content = build_message_set(
        [Record(0, NOW_MS, 0, b"k", b"v", [])], magic=1, timestamp_type=1, log_append_time=NOW_MS
    )
    with pytest.raises(InvalidTimestampError):
        prepare(content, message_timestamp_type="LogAppendTime")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_old_messages_that_do_not_decompress_are_refused_for_good(magic: int, codec: int) -> None:
    with pytest.raises(InvalidRecordError):
        prepare(encode_message(0, magic, codec, NOW_MS, None, b"\xff" * 40))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_offset": 1}, "base offset"),
        ({"record_count": 0, "last_offset_delta": -1}, "record count 0 .* delta -1"),
        ({"record_count": 2}, "record count 2 .* delta 0"),
        ({"last_offset_delta": 4}, "record count 1 .* delta 4"),
        ({"attributes": 0x20}, "control"),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, "sequence number -1"),
    ],
)
def test_rules_for_producers(fields: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        prepare(assemble(**fields))


def test_coordinators_may_write_markers() -> None:
    accepted = prepare(marker(7, committed=True), COORDINATOR, cleanup_policy=("compact",))
    assert headers(accepted)[0].is_control


def test_a_codec_that_does_not_exist() -> None:
    with pytest.raises(UnsupportedCompressionError, match="5"):
        prepare(assemble(attributes=5))


def test_the_size_is_that_of_each_batch() -> None:
    content = batch_of(2)
    prepare(content + content, max_message_bytes=len(content))
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        prepare(content, max_message_bytes=len(content) - 1)


# --- settings that ask for a closer look ---------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_compacted_topic_wants_keys(codec: int) -> None:
    good: list[NewRecord] = [(NOW_MS, b"k", None, []), (NOW_MS, b"", b"", [])]
    prepare(batch_of(good, codec=codec), cleanup_policy=("compact",))
    bad: list[NewRecord] = [good[0], (NOW_MS, None, b"v", []), (NOW_MS, None, b"v", [])]
    with pytest.raises(InvalidRecordError, match="cannot accept message without key") as caught:
        prepare(batch_of(bad, codec=codec), cleanup_policy=("compact",))
    assert [index for index, _ in caught.value.record_errors] == [1, 2]


@pytest.mark.parametrize(
    "settings", [{"cleanup_policy": ("compact",)}, {"compression_type": "lz4"}]
)
def test_a_batch_of_too_many_records_is_not_unpacked(settings: dict[str, object]) -> None:
    bomb = assemble(record_count=MAX_RECORDS_DECODED + 1, last_offset_delta=MAX_RECORDS_DECODED)
    with pytest.raises(RecordTooLargeError, match="500001 records"):
        prepare(bomb, **settings)
    with pytest.raises(InvalidRecordError, match="500001 records"):
        prepare(bomb)  # without compression the bytes say that they are not there


def test_timestamps_have_limits_when_set() -> None:
    records: list[NewRecord] = [(NOW_MS + delta, b"k", b"", []) for delta in (0, -500, 700)]
    prepare(batch_of(records))
    prepare(batch_of(records), message_timestamp_before_max_ms=500)
    prepare(batch_of(records), message_timestamp_after_max_ms=700)
    for setting, index in (("before", 1), ("after", 2)):
        name = f"message_timestamp_{setting}_max_ms"
        with pytest.raises(InvalidTimestampError, match="invalid timestamp") as caught:
            prepare(batch_of(records), **{name: 400})
        assert [i for i, _ in caught.value.record_errors] == [index]


def test_records_without_a_timestamp_have_no_limits() -> None:
    prepare(batch_of([(-1, b"k", b"", [])]), message_timestamp_before_max_ms=1)


def test_log_append_time_replaces_the_timestamps() -> None:
    accepted = prepare(
        batch_of([(5, b"k", b"v", [])]),
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=1,
    )
    assert accepted.log_append_time == NOW_MS
    (batch,) = accepted.batches
    assert batch.max_timestamp == NOW_MS
    assert batch.header is not None
    assert batch.header.max_timestamp == NOW_MS
    (record,) = read_records(bytes(accepted.buffer))
    assert (record.timestamp, record.timestamp_type) == (NOW_MS, LOG_APPEND_TIME)


def test_producers_do_not_stamp_batches_themselves() -> None:
    content = batch_of(1, timestamp_type=1, log_append_time=NOW_MS)
    with pytest.raises(InvalidTimestampError, match="LogAppendTime") as caught:
        prepare(content, message_timestamp_type="LogAppendTime")
    assert [index for index, _ in caught.value.record_errors] == [0]
    accepted = prepare(content)
    assert headers(accepted)[0].timestamp_type == 0
    assert next(read_records(bytes(accepted.buffer))).timestamp == NOW_MS


@pytest.mark.parametrize("source", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("name", "codec"), [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_recompression(source: int, name: str, codec: int) -> None:
    records: list[NewRecord] = [
        (NOW_MS + i, b"k%d" % i, b"v" * 50, [("h", b"x")]) for i in range(9)
    ]
    content = batch_of(
        records, codec=source, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True
    )
    accepted = prepare(content, compression_type=name)
    (header,) = headers(accepted)
    assert header.codec == codec
    assert (header.base_offset, header.partition_leader_epoch) == (100, 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 3)
    assert header.is_transactional
    found = [(r.timestamp, r.key, r.value, r.headers) for r in read_records(bytes(accepted.buffer))]
    assert found == records


def test_recompression_can_make_a_batch_too_large() -> None:
    content = batch_of([(NOW_MS, b"k", bytes(5000), [])], codec=1)
    with pytest.raises(RecordTooLargeError, match="with none compression"):
        prepare(content, compression_type="uncompressed", max_message_bytes=1000)


def test_a_count_that_lies_is_found_when_records_are_read() -> None:
    content = assemble(record_count=2, last_offset_delta=1)
    with pytest.raises(InvalidRecordError):
        prepare(content, compression_type="gzip")
    with pytest.raises(InvalidRecordError):
        prepare(content, cleanup_policy=("compact",))


# --- old magics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_old_messages_become_one_batch(magic: int, codec: int) -> None:
    old = [
        Record(i, NOW_MS + i if magic else -1, 0 if magic else -1, b"k", b"v", []) for i in range(3)
    ]
    accepted = prepare(build_message_set(old, magic=magic, codec=codec))
    (header,) = headers(accepted)
    assert (header.magic, header.base_offset, header.record_count) == (2, 100, 3)
    assert (header.codec, header.partition_leader_epoch) == (codec, 5)
    found = list(read_records(bytes(accepted.buffer)))
    assert [(r.offset, r.key, r.value) for r in found] == [
        (100, b"k", b"v"), (101, b"k", b"v"), (102, b"k", b"v"),
    ]  # fmt: skip
    assert [r.timestamp for r in found] == [r.timestamp for r in old]


def test_old_messages_obey_the_same_settings() -> None:
    old = [Record(0, NOW_MS, 0, None, b"v", [])]
    content = build_message_set(old, magic=1)
    with pytest.raises(InvalidRecordError, match="key"):
        prepare(content, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecordError, match="key"):
        prepare(content, cleanup_policy=("compact",), message_timestamp_type="LogAppendTime")
    with pytest.raises(RecordTooLargeError):
        prepare(content, max_message_bytes=20)
    accepted = prepare(content, message_timestamp_type="LogAppendTime", compression_type="gzip")
    (header,) = headers(accepted)
    assert (header.codec, header.max_timestamp, header.timestamp_type) == (1, NOW_MS, 1)


@pytest.mark.parametrize("codec", [0, 1])
def test_old_messages_are_stamped_on_compacted_topics(codec: int) -> None:
    old = [Record(0, NOW_MS, 0, b"k", b"v", [])]
    content = build_message_set(old, magic=1, codec=codec)
    settings = {"cleanup_policy": ("compact",), "message_timestamp_type": "LogAppendTime"}
    (header,) = headers(prepare(content, **settings))
    assert (header.codec, header.timestamp_type) == (codec, 1)


def test_magics_are_not_mixed() -> None:
    old = build_message_set([Record(0, NOW_MS, 0, b"k", b"v", [])], magic=1)
    for content in (batch_of(1) + old, old + batch_of(1)):
        with pytest.raises(InvalidRecordError):
            prepare(content)


# --- followers -----------------------------------------------------------------------------------


def test_followers_take_what_the_leader_has_and_cut_the_rest_off() -> None:
    first = batch_of(2, base_offset=10, leader_epoch=3)
    second = batch_of(1, base_offset=20, leader_epoch=4)
    third = batch_of(1, base_offset=21, leader_epoch=4)
    accepted = prepare_for_follower(bytearray(first + second + third[:-1]))
    assert [(b.first_offset, b.last_offset, b.leader_epoch) for b in accepted.batches] == [
        (10, 11, 3), (20, 20, 4),
    ]  # fmt: skip
    assert bytes(accepted.buffer) == bytes(first + second)


def test_followers_check_checksums_and_order() -> None:
    batch = batch_of(1, base_offset=5)
    with pytest.raises(OffsetsOutOfOrder, match="offset 5 follows 5"):
        prepare_for_follower(batch + batch)
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        prepare_for_follower(batch)


def test_followers_check_the_crc_of_old_messages() -> None:
    old = bytearray(build_message_set([Record(4, NOW_MS, 0, b"k", b"v", [])], magic=1))
    old[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        prepare_for_follower(old)


def test_followers_take_old_messages_as_they_are() -> None:
    old = build_message_set([Record(4, NOW_MS, 0, b"k", b"v", [])], magic=1)
    (batch,) = prepare_for_follower(bytearray(old)).batches
    assert (batch.first_offset, batch.last_offset, batch.leader_epoch) == (4, 4, -1)
    assert batch.header is None


def test_build_batch_is_what_the_tests_think() -> None:
    assert assemble() == build_batch([(NOW_MS, b"a", b"", [])])


MANY = 6_000  # more records than there is time for at once


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (batch_of(MANY), {"cleanup_policy": ("compact",)}),
        (batch_of(MANY), {"compression_type": "lz4"}),
        (batch_of([(NOW_MS, b"k", bytes(4 << 20), [])], codec=1), {"cleanup_policy": ("compact",)}),
        (batch_of([(NOW_MS, b"k", bytes(4 << 20), [])], codec=4), {"compression_type": "lz4"}),
        (batch_of([(NOW_MS, b"k", bytes(500_000), [])], codec=3), {"compression_type": "gzip"}),
        (batch_of(MANY), {"message_timestamp_before_max_ms": 10**15}),
        (bytearray(build_message_set([Record(0, 1, 0, b"", b"", [])], magic=1) * MANY), {}),
        (
            bytearray(
                build_message_set(
                    [Record(n, 1, 0, b"", b"", []) for n in range(MANY)], magic=1, codec=1
                )
            ),
            {},
        ),
    ],
)
def test_what_takes_long_is_left_to_others(content: bytearray, settings: dict[str, object]) -> None:
    config = LogConfig(max_message_bytes=1 << 20, **settings)
    before = bytes(content)
    with pytest.raises(ValidationBudgetExceeded):
        validate_records(content, config, CLIENT, NOW_MS, ValidationBudget())
    assert content == before
    assert validate_records(content, config, CLIENT, NOW_MS).batches


def test_a_budget_is_for_all_batches_together() -> None:
    config = LogConfig(cleanup_policy=("compact",))
    budget = ValidationBudget()
    for _ in range(4):
        validate_records(batch_of(1_000), config, CLIENT, NOW_MS, budget)
    with pytest.raises(ValidationBudgetExceeded):
        validate_records(batch_of(1_001), config, CLIENT, NOW_MS, budget)


def test_each_record_is_checked_and_costs() -> None:
    budget = ValidationBudget(MANY)
    validate_records(batch_of(MANY), LogConfig(), CLIENT, NOW_MS, budget)
    assert budget.left == 0
    with pytest.raises(ValidationBudgetExceeded):
        validate_records(batch_of(MANY), LogConfig(), CLIENT, NOW_MS, ValidationBudget(MANY - 1))


def test_batches_of_coordinators_are_not_checked() -> None:
    budget = ValidationBudget(0)
    validate_records(batch_of(MANY), LogConfig(), AppendOrigin.COORDINATOR, NOW_MS, budget)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cleanup_policy": ("compact",)},
        {"message_timestamp_before_max_ms": 1_000},
        {"message_timestamp_after_max_ms": 1_000},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "uncompressed"},
        {"compression_type": "gzip"},
        {"compression_type": "zstd"},
        {"message_format_version": "0.10.2"},
    ],
    ids=str,
)
def test_what_does_not_decompress_is_refused_for_good(
    codec: int, settings: dict[str, object]
) -> None:
    """INVALID_RECORD: producers retry CORRUPT_MESSAGE, and would send the same again."""
    garbage = compress(codec, bytes(range(200)) * 9)[:40] + b"garbage"
    with pytest.raises(InvalidRecordError, match="cannot be decompressed"):
        prepare(assemble(garbage, attributes=codec), **settings)


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
def test_compacted_topics_refuse_offsets_out_of_order_too(codec: int) -> None:
    payload = bytearray()
    for delta in (0, 2, 1):
        encode_record(payload, 0, delta, b"k", b"v", [])
    batch = assemble(
        compress(codec, payload), attributes=codec, record_count=3, last_offset_delta=2
    )
    for settings in ({}, {"cleanup_policy": ("compact",)}):
        with pytest.raises(InvalidRecordError):
            prepare(batch, **settings)


@pytest.mark.parametrize("lie", [-1, 0, NOW_MS - 7, NOW_MS + 3_600_000, 4_102_444_800_000])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_limits_of_timestamps_are_those_of_the_records(codec: int, lie: int) -> None:
    times = (NOW_MS - 5_000, NOW_MS, NOW_MS + 5_000)
    batch = bytearray(batch_of([(time, b"k", b"v", []) for time in times], codec=codec))
    patch_max_timestamp(batch, 0, 0, lie)
    limits: list[tuple[str, int]] = [
        ("message_timestamp_before_max_ms", 0), ("message_timestamp_after_max_ms", 2)
    ]  # fmt: skip
    for name, index in limits:
        (header,) = headers(prepare(batch, **{name: 5_000}))
        assert header.max_timestamp == NOW_MS + 5_000
        with pytest.raises(InvalidTimestampError) as found:
            prepare(batch, **{name: 4_999})
        assert [number for number, _ in found.value.record_errors] == [index]


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_the_number_of_records_is_that_of_the_header(codec: int, count: int) -> None:
    records = bytes(memoryview(batch_of(3))[BATCH_OVERHEAD:])
    lie = assemble(
        compress(codec, records), record_count=count, last_offset_delta=count - 1, attributes=codec
    )
    with pytest.raises(InvalidRecordError):
        prepare(lie)


def test_offsets_out_of_order_are_put_in_order_with_another_compression() -> None:
    payload = bytearray()
    for delta in (3, 1):
        encode_record(payload, delta, delta, b"k", b"v", [("h", None)])
    batch = assemble_batch(
        bytes(payload), base_offset=0, last_offset_delta=1, base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 3, record_count=2, attributes=0,
    )  # fmt: skip
    accepted = prepare(batch, compression_type="lz4")
    found = list(read_records(bytes(accepted.buffer)))
    assert [(r.offset, r.timestamp, r.headers) for r in found] == [
        (100, NOW_MS + 3, [("h", None)]), (101, NOW_MS + 1, [("h", None)]),
    ]  # fmt: skip


def test_recompression_corrects_the_newest_timestamp() -> None:
    batch = bytearray(batch_of([(NOW_MS, b"k", b"v", []), (NOW_MS + 5, b"k", b"v", [])]))
    patch_max_timestamp(batch, 0, 0, NOW_MS + 99)
    (header,) = headers(prepare(batch, compression_type="zstd"))
    assert (header.codec, header.max_timestamp) == (4, NOW_MS + 5)


LZ4 = read_header(build_batch([(0, None, b"v", [])], codec=CODECS["lz4"]))


def test_the_codec_of_the_producer_unless_one_is_set() -> None:
    assert target_codec(LogConfig(compression_type="producer"), LZ4) == CODECS["lz4"]
    assert target_codec(LogConfig(compression_type="uncompressed"), LZ4) == 0
    assert target_codec(LogConfig(compression_type="zstd"), LZ4) == CODECS["zstd"]


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_the_level_of_each_codec(name: str) -> None:
    config = LogConfig(**{f"compression_{name}_level": 7})
    assert level_of(config, CODECS[name]) == 7
    assert level_of(config, CODECS["snappy"]) is None
    assert compression_cost(config, CODECS[name]) == KIB_COMPRESSED_WELL
    assert compression_cost(config, CODECS["snappy"]) == KIB_COMPRESSED
    assert compression_cost(config, 0) == 0


def test_a_batch_that_is_too_large_after_compression() -> None:
    config = LogConfig(max_message_bytes=100)
    check_size(100, 1, config)
    with pytest.raises(RecordTooLargeError, match="101 bytes with gzip compression"):
        check_size(101, 1, config)
