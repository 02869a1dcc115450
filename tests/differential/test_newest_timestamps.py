"""Batches whose header has another newest timestamp than their records.

Both brokers refuse, store and find them by time alike.

Sarama up to 1.45.0 leaves it at -1; others may say anything.
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
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.records.batch import patch_max_timestamp
from ottla.protocol.records.builder import build_batch
from tests.differential.asking import Pair
from tests.differential.test_append_settings import DAY_MS, fetch, produce, stored

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
MAX_TIMESTAMP = -3

SETTINGS = [
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": str(DAY_MS)},
    {"message.timestamp.after.max.ms": str(DAY_MS)},
    {"compression.type": "uncompressed"},
    {"compression.type": "lz4"},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(DAY_MS)},
]


def cases(now_ms: int) -> list[tuple[str, bytes]]:
    """(name, batch)"""
    found = []
    contents = {
        "now": [now_ms + n for n in range(3)],
        "one": [now_ms + 50],
        "falling": [now_ms + 100 - n for n in range(20)],
        "hours": [now_ms - 9 * HOUR_MS + n * HOUR_MS for n in range(10)],
        "one in the future": [now_ms, now_ms + 3 * DAY_MS, now_ms],
        "one of the past": [now_ms, now_ms - 3 * DAY_MS, now_ms + 1],
        "without timestamps": [-1, -1, -1],
        "one without a timestamp": [now_ms, -1, now_ms + 3],
        "many": [now_ms + n % 700 for n in range(6_000)],
    }
    for name, times in contents.items():
        newest = max(times)
        lies = (newest, -1, 0, newest - 1, newest + 1, newest + HOUR_MS, now_ms, 4_102_444_800_000)
        for codec in range(5):
            for lie in lies if name != "many" else lies[:2]:
                rows = [(stamp, b"k%d" % n, b"value", []) for n, stamp in enumerate(times)]
                batch = bytearray(build_batch(rows, codec=codec))
                patch_max_timestamp(batch, 0, 0, lie)
                found.append((f"{name}, codec {codec}, header {lie - now_ms}", bytes(batch)))
    return found


def stamped_cases(now_ms: int) -> list[tuple[str, bytes]]:
    """Batches that claim to have LogAppendTime: their records have the timestamp of the header."""
    found = []
    for codec in (0, 1, 3):
        rows = [(now_ms + n, b"k%d" % n, b"value", []) for n in range(3)]
        for lie in (now_ms + 2, -1, 0, now_ms - 3, now_ms + 3 * DAY_MS, now_ms - 3 * DAY_MS):
            batch = bytearray(build_batch(rows, codec=codec))
            patch_max_timestamp(batch, 0, 1, lie)
            found.append((f"stamped, codec {codec}, header {lie - now_ms}", bytes(batch)))
    return found


def by_time(topic: str, timestamp: int) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(0, timestamp=timestamp)]
    return ListOffsetsRequest(-1, topics=[ListOffsetsTopic(topic, rows)])


def new_topic(pair: Pair, settings: dict[str, str]) -> str:
    topic = f"newest-{uuid.uuid4().hex[:8]}"
    configs = [CreatableTopicConfig(name=name, value=text) for name, text in settings.items()]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    pair.compare(CreateTopicsRequest(topics=[new], timeout_ms=10_000), [4])
    return topic


def append_to_both(
    pair: Pair, topic: str, batches: list[tuple[str, bytes]], now_ms: int
) -> tuple[list[tuple[object, ...]], ...]:
    """What the two have stored then."""
    ignore = ["error_message", "message", "batch_index_error_message"]
    wrong = []
    for name, records in batches:
        try:
            pair.compare(produce(topic, records), [9], ignore=ignore)
        except AssertionError as difference:
            wrong.append(f"{name}: {difference}")
    assert not wrong, "\n".join(wrong)
    responses = pair.responses(fetch(topic, 64 << 20), 11)
    return tuple(stored(response, now_ms) for response in responses)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: ",".join(each.values()) or "plain")
def test_the_newest_timestamp_is_that_of_the_records(pair: Pair, settings: dict[str, str]) -> None:
    topic = new_topic(pair, settings)
    now_ms = time.time_ns() // 1_000_000
    kafka, ottla = append_to_both(pair, topic, cases(now_ms), now_ms)
    assert ottla == kafka
    if "message.timestamp.type" not in settings:
        days = [now_ms + days * DAY_MS for days in (-4, -1, 1, 2, 3, 4)]
        for timestamp in (MAX_TIMESTAMP, 0, now_ms - 5 * HOUR_MS, now_ms, now_ms + 100, *days):
            pair.compare(by_time(topic, timestamp), [7])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: ",".join(each.values()) or "plain")
def test_batches_that_their_producer_stamped(pair: Pair, settings: dict[str, str]) -> None:
    topic = new_topic(pair, settings)
    now_ms = time.time_ns() // 1_000_000
    kafka, ottla = append_to_both(pair, topic, stamped_cases(now_ms), now_ms)
    assert ottla == kafka
