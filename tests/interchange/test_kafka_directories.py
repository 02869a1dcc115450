"""Our log and Apache Kafka 3.9.1 take turns on the same directories.

Kafka writes topics with every codec, transactions, compaction and several leader epochs and is
stopped. Our log opens what it left: every record, index entry, look-up by time, producer snapshot
and epoch has to be right. It appends. Kafka starts on that again, must not find anything to
recover, and serves all of it; its own tool then verifies our files.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.log_tools import verify
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.reader import read_records
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.checkpoints import read_offset_checkpoint
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.layout import CLEANER_CHECKPOINT
from ottla.storage.log.batch_scan import walk
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.producer.producer_snapshot import decode_snapshot
from tests.doubles.apache_kafka import dump_log_segments, start_kafka, start_zookeeper
from tests.doubles.compactions import next_compaction
from tests.doubles.eventually import eventually
from tests.doubles.kafka_traffic import (
    SECONDS,
    START_MS,
    Row,
    consume,
    keyed_transactions,
    offsets_for_times,
    produce,
    raise_leader_epochs,
    transactions,
    wait_until_gone,
)
from tests.doubles.record_batches import iterate_batches

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Small segments and dense indexes, so that a few thousand records make many of both.
SMALL = (
    *("--config", "segment.bytes=40000", "--config", "index.interval.bytes=500"),
    *("--config", "retention.ms=-1"),  # the records are from 2023
)
COMPACTED = (
    *SMALL,
    *("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01"),
    *("--config", "delete.retention.ms=100"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    directory = tmp_path_factory.mktemp("kafka")
    with start_zookeeper(directory) as zookeeper:
        yield directory, zookeeper


def kafka_on(cluster: tuple[Path, str]) -> Any:
    directory, zookeeper = cluster
    return start_kafka(
        directory,
        zookeeper=zookeeper,
        log_cleaner_backoff_ms=200,
        log_retention_check_interval_ms=1000,
        log_initial_task_delay_ms=200,
        auto_create_topics_enable=False,
        # A session lost on a busy machine would begin another leader epoch.
        zookeeper_session_timeout_ms=10_000,
    )


def wait_until_compacted(data: Path, topic: str) -> None:
    """Until Kafka's cleaner has got to the active segment: then it has nothing more to do."""

    def is_compacted() -> bool:
        active = max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))
        offsets = read_offset_checkpoint(RealFileSystem(), f"{data}/{CLEANER_CHECKPOINT}")
        return offsets.get((topic, 0)) == active

    eventually(is_compacted, f"{topic} is not compacted up to its active segment", seconds=SECONDS)


def rows_of(log: Log, *, committed: bool = False) -> list[Row]:
    """The same through our log, fetch by fetch."""
    rows: list[Row] = []
    offset = log.log_start_offset
    bound = log.last_stable_offset if committed else log.log_end_offset
    aborted: set[tuple[int, int]] = set()
    while offset < bound:
        info = log.read(offset, 3000, up_to=bound, read_committed=committed)
        if info.slice is None:
            break
        content = info.slice.read()
        assert len(content) == len(info.slice)
        aborted.update(info.aborted_transactions)
        for record in read_records(content):
            if record.offset >= offset:
                headers = [(name, value or b"") for name, value in record.headers]
                rows.append((record.offset, record.timestamp, record.key, record.value, headers))
        offset = next_offset(log, content)
    return rows


def next_offset(log: Log, content: bytes) -> int:
    *_, (_, last) = iterate_batches(content)
    return last.next_offset


def check_indexes(log: Log) -> None:
    """Every look-up in the indexes finds the position of a scan from the beginning."""
    for segment in log.segments:
        places = list(walk(segment.log, 0, segment.size))
        for place in places:
            for offset in (place.base_offset, place.last_offset):
                found = segment.find_batch(offset)
                assert found == place, (segment, offset)
        for number in range(segment.offset_index.entries):
            offset, position = segment.offset_index.entry(number)
            assert any(p.position == position and p.last_offset >= offset for p in places)
        newest = -1
        for number in range(segment.time_index.entries):
            timestamp, offset = segment.time_index.entry(number)
            newest = max(p.max_timestamp for p in places if p.base_offset <= offset)
            assert timestamp >= newest or number == 0
        if places:
            assert segment.newest()[0] == max(p.max_timestamp for p in places)


def aborted_data(log: Log, rows: list[Row], committed: list[Row]) -> None:
    """What a client drops with our list of aborted transactions is what Kafka's reader dropped."""
    wanted = {row[0] for row in committed}
    end = log.last_stable_offset
    info = log.read(log.log_start_offset, 1 << 30, up_to=end, read_committed=True)
    open_aborts: dict[int, list[int]] = {}
    seen: set[int] = set()
    offset = log.log_start_offset
    while offset < end:
        info = log.read(offset, 2000, up_to=end, read_committed=True)
        assert info.slice is not None
        content = info.slice.read()
        aborted: dict[int, list[int]] = {}
        for producer_id, first in info.aborted_transactions:
            aborted.setdefault(producer_id, []).append(first)
        open_aborts = {}
        for position, header in iterate_batches(content):
            starts = aborted.get(header.producer_id, [])
            while starts and starts[0] <= header.last_offset:
                open_aborts.setdefault(header.producer_id, []).append(starts.pop(0))
            if header.is_control:
                open_aborts.pop(header.producer_id, None)
                continue
            if header.is_transactional and header.producer_id in open_aborts:
                continue
            batch = content[position : position + header.size_in_bytes]
            seen.update(r.offset for r in read_records(batch) if r.offset >= offset)
        offset = next_offset(log, content)
    assert seen == wanted


def parse_dumped_producers(text: str) -> dict[int, dict[str, int]]:
    found = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+): (-?\d+)", line))
        if "producerId" in fields:
            found[int(fields["producerId"])] = {k: int(v) for k, v in fields.items()}
    return found


def test_kafka_and_our_log_take_turns(cluster: tuple[Path, str]) -> None:
    directory, _ = cluster
    topics = [f"codec-{codec}" for codec in CODECS]
    times = [START_MS - 5, START_MS, START_MS + 1234, START_MS + 4321, START_MS + 9000, 1 << 42]
    with kafka_on(cluster) as kafka:
        for topic in (*topics, "transactions"):
            kafka.topics("--create", "--topic", topic, *SMALL)
        kafka.topics("--create", "--topic", "compacted", *COMPACTED)
        for topic, codec in zip(topics, CODECS, strict=True):
            settings = {"compression.type": codec, "enable.idempotence": codec != "gzip"}
            produce(kafka, topic, 0, 800, **settings)
        transactions(kafka, "transactions")
        produce(kafka, "compacted", 0, 3000)
        wait_until_compacted(directory / "data", "compacted")
    raise_leader_epochs(cluster[1], [*topics, "compacted"], 4)
    with kafka_on(cluster) as kafka:
        for topic in (*topics, "compacted"):
            produce(kafka, topic, 800, 200, **{"compression.type": "lz4"})
        # What is read now has to be what is there when Kafka has stopped.
        wait_until_compacted(directory / "data", "compacted")
        everything = {t: consume(kafka, t) for t in (*topics, "transactions", "compacted")}
        committed = consume(kafka, "transactions", committed=True)
        by_time = {topic: offsets_for_times(kafka, topic, times) for topic in topics}
    data = directory / "data"
    assert_sound(data)

    manager = LogManager([data])
    manager.lock()
    manager.load(START_MS)
    meta = manager.read_meta_properties()
    assert meta.broker_id == 0
    assert meta.cluster_id
    for topic, rows in everything.items():
        log = manager.get(topic, 0)
        assert log is not None
        assert log.recovery_point == log.log_end_offset, "a clean shutdown was not recognised"
        assert rows_of(log) == rows
        assert log.high_watermark == log.log_end_offset
        assert log.topic_id is not None
        assert log.leader_epochs.latest_epoch == (0 if topic == "transactions" else 4), topic
        check_indexes(log)
        epochs = log.leader_epochs.entries
        assert log.end_offset_for_epoch(0)[1] == (
            epochs[1][1] if len(epochs) > 1 else log.log_end_offset
        )
    for topic, offsets in by_time.items():
        log = manager.get(topic, 0)
        assert log is not None
        responses = [log.offset_for_timestamp(timestamp) for timestamp in times]
        assert [log.log_end_offset if a is None else a[1] for a in responses] == [
            log.log_end_offset if offset == -1 else offset for offset in offsets
        ]
        newest = max(row[1] for row in everything[topic])
        found = log.max_timestamp_offset()
        assert found is not None
        assert found[0] == newest
    log = manager.get("transactions", 0)
    assert log is not None
    assert log.last_stable_offset < log.log_end_offset, "one transaction is open"
    aborted_data(log, everything["transactions"], committed)
    for snapshot in (data / "transactions-0").glob("*.snapshot"):
        ours = list(decode_snapshot(str(snapshot), snapshot.read_bytes()))
        dumped = parse_dumped_producers(dump_log_segments("--files", str(snapshot)))
        assert len(ours) == len(dumped)
        for entry in ours:
            line = dumped[entry.producer_id]
            assert line["producerEpoch"] == entry.epoch
            assert line["coordinatorEpoch"] == entry.coordinator_epoch
            assert line["lastTimestamp"] == entry.last_timestamp
            if entry.batches:
                assert line["lastSequence"] == entry.last_sequence
                assert line["lastOffset"] == entry.last_offset

    appended = append_ours(manager, [*topics, "transactions", "compacted"])
    expected = {topic: rows_of(log_of(manager, topic)) for topic in everything}
    manager.shutdown(START_MS)
    assert_sound(data)

    raise_leader_epochs(cluster[1], list(everything), 9)
    with kafka_on(cluster) as kafka:
        for topic, rows in everything.items():
            again = consume(kafka, topic)
            assert again[: len(rows)] == rows or topic == "compacted"
            if topic != "compacted":
                assert again == expected[topic]
            assert again[-1][0] >= appended[topic]
        produce(kafka, "codec-none", 2000, 50)
        output = kafka.output()
    complaints = [
        line
        for line in output.splitlines()
        if re.search(r" (WARN|ERROR|FATAL) ", line)
        and re.search(r"\(kafka\.log|storage\.internals|LogLoader|UnifiedLog", line)
    ]
    assert complaints == []
    assert "Recovering unflushed segment" not in output
    assert "rebuilding index" not in output
    assert complaints_about(data) == []


def outline_of(log: Log, end: int) -> list[tuple[object, ...]]:
    """What is left of each batch below `end`: its header but for base timestamp, its records."""
    found = []
    for batch in log.batches(0, end):
        header = read_header(batch)
        offsets = [r.offset for r in read_records(bytes(batch), include_control=True)]
        times = [r.timestamp for r in read_records(bytes(batch), include_control=True)]
        found.append(
            (
                header.base_offset,
                header.last_offset,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.attributes,
                header.partition_leader_epoch,
                header.max_timestamp,
                offsets,
                times,
            )
        )
    return found


def test_our_compaction_keeps_what_kafkas_keeps(cluster: tuple[Path, str]) -> None:
    directory, _ = cluster
    waiting = ("--config", "min.cleanable.dirty.ratio=1.0", "--config", "cleanup.policy=compact")
    small = ("--config", "segment.bytes=6000", "--config", "index.interval.bytes=500")
    with kafka_on(cluster) as kafka:
        kafka.topics("--create", "--topic", "twice", *small, *waiting)
        keyed_transactions(kafka, "twice")
        produce(kafka, "twice", 0, 300, **{"compression.type": "lz4"})
    data = directory / "data"
    copied = directory / "copied"
    shutil.copytree(data, copied, ignore=shutil.ignore_patterns(".lock"))
    with kafka_on(cluster) as kafka:
        kafka.run_tool(
            "kafka.admin.ConfigCommand", "--alter", "--topic", "twice",
            "--add-config", "min.cleanable.dirty.ratio=0.01",
        )  # fmt: skip
        wait_until_compacted(data, "twice")
    theirs = LogManager([data])
    theirs.load(START_MS)
    kafkas = log_of(theirs, "twice")
    end = Cleaner(theirs.logs).checkpoint_of(kafkas)
    assert end is not None
    assert 0 < end < kafkas.log_end_offset

    config = LogConfig(
        cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=6000
    )
    ours = LogManager([copied], config)
    ours.load(START_MS)
    cleaner = Cleaner(lambda: [log_of(ours, "twice")])
    compaction = next_compaction(cleaner, START_MS)
    assert compaction is not None
    compaction.run()
    assert compaction.error is None
    assert compaction.end_offset == end
    assert cleaner.finish(compaction, START_MS)
    log = log_of(ours, "twice")
    assert outline_of(log, end) == outline_of(kafkas, end)
    assert rows_of(log) == rows_of(kafkas)
    assert [s.txn_index.entries() for s in log.segments] == [
        s.txn_index.entries() for s in kafkas.segments
    ]
    ours.shutdown(START_MS)
    theirs.shutdown(START_MS)
    # Kafka's tool does not like that an emptied batch keeps its timestamp, in Kafka's files either.
    assert complaints_about(copied, "twice-0") == complaints_about(data, "twice-0")


def test_each_recovers_what_the_other_left_when_it_was_killed(cluster: tuple[Path, str]) -> None:
    """kill -9 of Kafka: its indexes are mostly set aside room, its last segments not flushed."""
    directory, _ = cluster
    data = directory / "data"
    with kafka_on(cluster) as kafka:
        kafka.topics("--create", "--topic", "killed", *SMALL)
        produce(kafka, "killed", 0, 600, **{"compression.type": "snappy"})
        keyed_transactions(kafka, "killed")
        rows = consume(kafka, "killed")
        committed = consume(kafka, "killed", committed=True)
        kafka.kill()
    manager = LogManager([data])
    manager.lock()
    manager.load(START_MS)
    log = log_of(manager, "killed")
    assert rows_of(log) == rows
    log.update_high_watermark(log.log_end_offset)
    aborted_data(log, rows, committed)
    check_indexes(log)
    append_ours(manager, ["killed"])
    expected = rows_of(log)
    manager.checkpoint_all()
    # No shutdown: this is how a killed process leaves it.
    manager.directories.unlock()
    wait_until_gone(cluster[1])
    raise_leader_epochs(cluster[1], ["killed"], 9)
    with kafka_on(cluster) as kafka:
        assert consume(kafka, "killed") == expected
        output = kafka.output()
    assert "Recovering unflushed segment" in output
    assert not re.search(r"Corruption found|Found invalid|truncating to offset", output)
    assert_sound(data)


def log_of(manager: LogManager, topic: str) -> Log:
    log = manager.get(topic, 0)
    assert log is not None
    return log


def append_ours(manager: LogManager, topics: list[str]) -> dict[str, int]:
    """Plain, idempotent and transactional batches with our log, over several segments."""
    last = {}
    for topic in topics:
        log = log_of(manager, topic)
        log.update_config(log.config.replace(segment_bytes=30_000, index_interval_bytes=500))
        sequence = 0
        for number in range(120):
            records = [
                (START_MS + 50_000 + number * 10 + i, b"ours-%d" % i, b"v" * 60, [("h", b"1")])
                for i in range(10)
            ]
            batch = build_batch(
                records,
                codec=number % 5,
                producer_id=900_000 if number % 2 else -1,
                producer_epoch=0 if number % 2 else -1,
                base_sequence=sequence if number % 2 else -1,
            )
            sequence += 10 * (number % 2)
            info = log.append(bytearray(batch), leader_epoch=7, now_ms=START_MS)
            last[topic] = info.last_offset
        for committed in (True, False):
            batch = build_batch(
                [(START_MS + 60_000, b"t", b"x", [])], producer_id=900_001, producer_epoch=0,
                base_sequence=0 if committed else 1, transactional=True,
            )  # fmt: skip
            log.append(bytearray(batch), leader_epoch=7, now_ms=START_MS)
            marker = end_transaction_marker(
                committed=committed, coordinator_epoch=0, producer_id=900_001, producer_epoch=0,
                timestamp_ms=START_MS + 60_000,
            )  # fmt: skip
            log.append(
                bytearray(marker), leader_epoch=7, now_ms=START_MS, origin=AppendOrigin.COORDINATOR
            )
        log.update_high_watermark(log.log_end_offset)
        check_indexes(log)
    return last


def assert_sound(data: Path) -> None:
    """Our own offline checker agrees."""
    out = io.StringIO()
    assert verify([data], out, deep=True) == 0, out.getvalue()


def complaints_about(data: Path, pattern: str = "*-0") -> list[str]:
    """What Kafka's dump tool finds wrong with logs and indexes."""
    logs = sorted(data.glob(f"{pattern}/*.log"))
    text = dump_log_segments("--deep-iteration", "--files", ",".join(map(str, logs)))
    assert "isvalid: true" in text
    assert "isvalid: false" not in text
    found = [line for line in text.splitlines() if "Mismatch" in line]
    indexes = sorted([*data.glob(f"{pattern}/*.index"), *data.glob(f"{pattern}/*.timeindex")])
    names = ",".join(str(path) for path in indexes if path.stat().st_size)
    text = dump_log_segments("--index-sanity-check", "--files", names)
    assert text.count("passed sanity check.") == len(names.split(","))
    text = dump_log_segments("--verify-index-only", "--files", names)
    found += [line for line in text.splitlines() if not line.startswith("Dumping ")]
    return [line.replace(str(data), "") for line in found]
