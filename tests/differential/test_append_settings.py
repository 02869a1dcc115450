"""What topic settings do to records that are appended: refused alike, stored alike.

Every case is sent to a topic of every setting; afterwards both brokers hold the same batches.
"""

from __future__ import annotations

import time
import uuid

import pytest

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from tests.differential.asking import Pair
from tests.doubles.record_batches import iterate_batches

pytestmark = pytest.mark.kafka

OLD_MS = 1_700_000_000_000
DAY_MS = 86_400_000
NEW_BATCHES, OLD_SETS = 9, 2  # the versions of Produce that carry magic 2, and 0 and 1

SETTINGS = [
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": str(DAY_MS)},
    {"message.timestamp.after.max.ms": str(DAY_MS)},
    {"message.timestamp.difference.max.ms": str(DAY_MS)},
    {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"},
    {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
    {"compression.type": "uncompressed"},
    {"compression.type": "gzip"},
    {"compression.type": "snappy"},
    {"compression.type": "lz4"},
    {"compression.type": "zstd"},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"},
    {"cleanup.policy": "compact", "compression.type": "gzip"},
    {"max.message.bytes": "150"},
    {"segment.bytes": "150"},
]


def cases(now_ms: int) -> list[tuple[str, int, bytes]]:
    """(name, version of Produce, records)"""
    keyed = [(now_ms + n, b"k%d" % n, b"value-%d" % n, [("h", b"x")]) for n in range(5)]
    keyless = [(now_ms, b"k", b"v", []), (now_ms, None, b"v", []), (now_ms, None, b"w", [])]
    old = [(now_ms, b"k", b"v", []), (OLD_MS, b"k", b"v", []), (-1, b"k", b"v", [])]
    late = [(now_ms + 3 * DAY_MS, b"k", b"v", []), (now_ms, b"k", None, [])]
    # More than are read on the event loop.
    many = [(now_ms + n % 9, b"k%d" % n, b"v", []) for n in range(6_000)]
    but_one = [*many[:4_321], (now_ms, None, b"v", []), *many[4_321:]]
    found = []
    for codec in (0, 3):
        found += [
            (f"many, codec {codec}", NEW_BATCHES, build_batch(many, codec=codec)),
            (f"many but one, codec {codec}", NEW_BATCHES, build_batch(but_one, codec=codec)),
        ]
    for codec in (0, 1, 3):
        found += [
            (f"keyed, codec {codec}", NEW_BATCHES, build_batch(keyed, codec=codec)),
            (f"keyless, codec {codec}", NEW_BATCHES, build_batch(keyless, codec=codec)),
            (f"too old, codec {codec}", NEW_BATCHES, build_batch(old, codec=codec)),
            (f"too late, codec {codec}", NEW_BATCHES, build_batch(late, codec=codec)),
        ]
    stamped = build_batch(keyed, timestamp_type=1, log_append_time=now_ms)
    found.append(("stamped by its producer", NEW_BATCHES, stamped))
    for magic in (0, 1):
        for codec in (0, 1):
            for name, rows in (("keyed", keyed), ("keyless", keyless), ("old", old[:2])):
                records = [
                    Record(n, row[0] if magic else -1, 0 if magic else -1, row[1], row[2], [])
                    for n, row in enumerate(rows)
                ]
                content = build_message_set(records, magic=magic, codec=codec)
                found.append((f"{name}, magic {magic}, codec {codec}", OLD_SETS, bytes(content)))
    return found


def produce(topic: str, records: bytes) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def fetch(topic: str, limit: int = 1 << 20) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=limit)
    return FetchRequest(
        replica_id=-1, max_wait_ms=10, min_bytes=0, max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])], session_epoch=-1,
    )  # fmt: skip


def content_of(response: object) -> bytes:
    """The records of the one partition of a response."""
    assert isinstance(response, FetchResponse)
    (partition,) = response.responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records or b"")


def stored(response: object, now_ms: int) -> list[tuple[object, ...]]:
    """Each batch as it lies in the log; times of the broker only by their kind."""
    content = content_of(response)
    found: list[tuple[object, ...]] = []
    for position, header in iterate_batches(content):
        batch = content[position : position + header.size_in_bytes]
        stamped = header.timestamp_type == 1
        records = [
            (r.offset, "now" if stamped else r.timestamp - now_ms, r.key, r.value, r.headers)
            for r in read_records(batch)
        ]
        newest = "now" if stamped else header.max_timestamp - now_ms
        found.append(
            (header.base_offset, header.last_offset, header.attributes, newest,
             header.record_count, header.magic, records)
        )  # fmt: skip
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: ",".join(each.values()))
def test_refused_alike_and_stored_alike(pair: Pair, settings: dict[str, str]) -> None:
    topic = f"append-{uuid.uuid4().hex[:8]}"
    configs = [CreatableTopicConfig(name=name, value=text) for name, text in settings.items()]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    pair.compare(CreateTopicsRequest(topics=[new], timeout_ms=10_000), [4])
    now_ms = time.time_ns() // 1_000_000
    wrong = []
    for name, version, records in cases(now_ms):
        try:
            pair.compare(
                produce(topic, records), [version], ignore=["error_message", "message",
                "batch_index_error_message"]
            )  # fmt: skip
        except AssertionError as difference:
            wrong.append(f"{name}: {difference}")
    assert not wrong, "\n".join(wrong)
    kafka, ottla = (stored(response, now_ms) for response in pair.responses(fetch(topic), 11))
    assert ottla == kafka
