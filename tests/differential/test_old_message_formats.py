"""What brokers of a protocol before 3.0 store in the formats before Kafka 0.11.

Every case is sent to a topic of every setting; afterwards both brokers hold the same messages, and
find the same offsets by time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from ottla.broker.handlers.records.list_offsets import EARLIEST_LOCAL
from ottla.protocol.errors import ErrorCode
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
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.reader import iterate_entries, read_entry
from tests.differential.asking import DIFFERENT, Pair, differences, plain
from tests.differential.conftest import SETTINGS
from tests.differential.test_append_settings import (
    NEW_BATCHES,
    cases,
    content_of,
    fetch,
    produce,
)
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker

pytestmark = pytest.mark.kafka

FORMATS = ("0.9.0", "0.10.2")
TOPICS = [
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"compression.type": "gzip"},
    {"compression.type": "lz4"},
    {"compression.type": "snappy"},
    {"cleanup.policy": "compact"},
    {"max.message.bytes": "150"},
    {"segment.bytes": "300"},
]
NOT_COMPARED = frozenset(("error_message", "message", "batch_index_error_message"))
# Records with headers, records with zstd, batches with a producer id. Kafka has no name for the
# first two, an internal error, and adds the log start offset to its response to all three.
SAME_REFUSALS = frozenset(
    (
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    )
)


@pytest.fixture(scope="module")
def old_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = {**SETTINGS, "inter_broker_protocol_version": "2.8"}
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **settings) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), **settings) as ottla,
    ):
        yield Pair(kafka.bootstrap, ottla.bootstrap)


def codes_and_rest(
    pair: Pair, request: ProduceRequest, version: int
) -> tuple[tuple[int, int], list[str]]:
    """The error codes of Kafka and of Ottla, and in what else the responses differ."""
    responses = pair.responses(request, version)
    codes = []
    for response in responses:
        assert isinstance(response, ProduceResponse)
        codes.append(response.responses[0].partition_responses[0].error_code)
    found = [plain(response, DIFFERENT | NOT_COMPARED) for response in responses]
    return (codes[0], codes[1]), differences(*found)


def stored(response: object, now_ms: int) -> list[tuple[object, ...]]:
    """Each message as it lies in the log; times of the broker only by their kind."""
    content = content_of(response)
    found: list[tuple[object, ...]] = []
    for position, header in iterate_entries(content):
        stamped = header.timestamp_type == 1
        records = [
            (each.offset, "now" if stamped else each.timestamp - now_ms, each.key, each.value)
            for each in read_entry(content, position, header)
        ]
        newest = "now" if stamped else header.max_timestamp - now_ms
        found.append((header.magic, header.last_offset, header.attributes, newest, records))
    return found


def by_time(topic: str, timestamp: int, version: int) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(0, timestamp=timestamp)]
    if version == 0:
        rows = [ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=5)]
    return ListOffsetsRequest(-1, topics=[ListOffsetsTopic(topic, rows)])


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("settings", TOPICS, ids=lambda each: ",".join(each.values()))
def test_stored_alike(old_pair: Pair, version: str, settings: dict[str, str]) -> None:
    pair, topic = old_pair, f"old-{uuid.uuid4().hex[:8]}"
    all_settings = {**settings, "message.format.version": version}
    configs = [CreatableTopicConfig(name=name, value=text) for name, text in all_settings.items()]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    pair.compare(CreateTopicsRequest(topics=[new], timeout_ms=10_000), [4])
    now_ms = time.time_ns() // 1_000_000
    headerless = [(now_ms + n, b"k%d" % n, b"value-%d" % n, []) for n in range(5)]
    sent = [
        *cases(now_ms),
        *((f"no headers, codec {codec}", NEW_BATCHES, build_batch(headerless, codec=codec))
          for codec in range(5)),
        ("idempotent", NEW_BATCHES,
         build_batch(headerless, producer_id=7, producer_epoch=0, base_sequence=0)),
    ]  # fmt: skip
    compared = [
        (name, *codes_and_rest(pair, produce(topic, records), request_version))
        for name, request_version, records in sent
    ]
    assert [each for each in compared if each[1] not in SAME_REFUSALS and each[2]] == []
    kafka, ottla = (stored(response, now_ms) for response in pair.responses(fetch(topic), 11))
    assert ottla == kafka
    assert {each[0] for each in ottla} <= {0 if version == "0.9.0" else 1}
    for timestamp in (-1, -2, -3, 0, now_ms - 1, now_ms, now_ms + 3, now_ms + 86_400_000 * 9):
        if timestamp != -3:
            pair.compare(by_time(topic, timestamp, 0), [0])
        if "message.timestamp.type" not in settings:
            pair.compare(by_time(topic, timestamp, 7), [7])
    pair.compare(by_time(topic, EARLIEST_LOCAL, 8), [8])


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2", "2.8"])
@pytest.mark.parametrize("limit", [5, 100])
def test_what_is_too_large_for_an_old_client(old_pair: Pair, version: str, limit: int) -> None:
    """It gets the beginning, and knows by that, unless the records have to be converted for it. A
    client from version 3 on gets all of it."""
    topic = f"large-{uuid.uuid4().hex[:8]}"
    configs = [CreatableTopicConfig(name="message.format.version", value=version)]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    old_pair.compare(CreateTopicsRequest(topics=[new], timeout_ms=10_000), [4])
    batch = build_batch([(1_700_000_000_000, None, b"x" * 500, [])])
    old_pair.compare(produce(topic, batch), [NEW_BATCHES], ignore=NOT_COMPARED)
    for fetch_version in range(5):
        found = []
        for response in old_pair.responses(fetch(topic, limit), fetch_version):
            content = content_of(response)
            whole = [header.last_offset for _, header in iterate_entries(content)]
            found.append((len(content) if fetch_version < 3 else -1, whole))
        assert found[0] == found[1], fetch_version
        assert found[0][1] == ([] if fetch_version < 3 else [0])
