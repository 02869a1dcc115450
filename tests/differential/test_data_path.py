"""Produce, Fetch, ListOffsets and their neighbours: the responses to good and to bad requests."""

import uuid

import lz4.frame
import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import assemble_batch, build_batch
from tests.differential.asking import Pair

pytestmark = pytest.mark.kafka

TIME = 1_700_000_000_000
BATCH = build_batch([(TIME + n, b"k%d" % n, b"value-%d" % n, []) for n in range(10)])


def compressed(codec: int, payload: bytes) -> bytes:
    """A batch that says it has the records of `BATCH`, compressed in a way of its own."""
    return assemble_batch(
        payload,
        base_offset=0,
        last_offset_delta=9,
        base_timestamp=TIME,
        max_timestamp=TIME + 9,
        record_count=10,
        attributes=codec,
    )


RECORDS = BATCH[61:]
LZ4 = 3
# Where there is one block only, a frame says that it is independent.
LINKED = lz4.frame.compress(RECORDS, block_linked=True)
LINKED = LINKED[:4] + bytes([LINKED[4] & ~0x20]) + LINKED[5:]
INDEPENDENT = lz4.frame.compress(RECORDS, block_linked=False)


@pytest.mark.parametrize(
    ("case", "payload"),
    [
        ("independent blocks", INDEPENDENT),
        ("linked blocks", LINKED),  # Java's reader cannot follow them
        ("no frame", b"\x00" * 16),
        ("an old version", INDEPENDENT[:4] + bytes([INDEPENDENT[4] & 0x3F]) + INDEPENDENT[5:]),
        ("cut in the header", INDEPENDENT[:5]),
    ],
)
def test_frames_of_lz4(pair: Pair, topic: str, case: str, payload: bytes) -> None:
    request = produce(topic, compressed(LZ4, payload))
    if case == "independent blocks":
        pair.compare(request, [3, 7, 8, 9, 11])
        return
    # Apache Kafka cannot say what is wrong; we can, and neither error is retried.
    pair.compare(
        request, [3, 7, 8, 9, 11], ignore=["error_message", "error_code", "log_start_offset"]
    )
    kafka, ottla = pair.responses(request, 11)
    codes = [row.responses[0].partition_responses[0].error_code for row in (kafka, ottla)]  # type: ignore[union-attr]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD]


@pytest.fixture
def topic(pair: Pair) -> str:
    name = f"data-{uuid.uuid4().hex[:8]}"
    made = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
        timeout_ms=10_000,
    )
    pair.compare(made, [4])
    return name


def produce(
    topic: str, records: bytes | None, acks: int = -1, partition: int = 0
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


def fetch(topic: str, offset: int, **options: int) -> FetchRequest:
    partition = FetchPartition(
        partition=options.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=options.pop("partition_max_bytes", 1 << 20),
        current_leader_epoch=options.pop("current_leader_epoch", -1),
        last_fetched_epoch=options.pop("last_fetched_epoch", -1),
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=options.pop("max_wait_ms", 10),
        min_bytes=options.pop("min_bytes", 0),
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
        session_epoch=options.pop("session_epoch", -1),
        session_id=0,
        **options,
    )


@pytest.mark.parametrize("version", range(3, 12))
def test_produce_then_fetch_in_every_version(pair: Pair, topic: str, version: int) -> None:
    pair.compare(produce(topic, BATCH), [version])
    pair.compare(fetch(topic, 0), range(4, 13))
    pair.compare(fetch(topic, 5), range(4, 13))
    pair.compare(fetch(topic, 10), range(4, 13))


def test_old_fetch_versions_get_old_formats(pair: Pair, topic: str) -> None:
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(fetch(topic, 0), range(4))


@pytest.mark.parametrize(
    ("case", "records"),
    [
        # null records are left out: Apache Kafka sends nothing at all for them
        ("no records", b""),
        ("flipped bit", BATCH[:-1] + bytes([BATCH[-1] ^ 1])),
        ("cut short", BATCH[:-3]),
        ("two batches", BATCH + BATCH),
        ("bad magic", BATCH[:16] + b"\x07" + BATCH[17:]),
        ("wrong count", BATCH[:57] + b"\x00\x00\x00\x63" + BATCH[61:]),
        ("header only", BATCH[:61]),
    ],
)
def test_bad_records(pair: Pair, topic: str, case: str, records: bytes) -> None:
    pair.compare(produce(topic, records), [3, 7, 8, 9, 11], ignore=["error_message"])


@pytest.mark.parametrize("acks", [1, -1, 2, -2, 7])
def test_acks(pair: Pair, topic: str, acks: int) -> None:
    pair.compare(produce(topic, BATCH, acks), [3, 8, 11], ignore=["error_message"])


def test_produce_to_what_is_not_there(pair: Pair, topic: str) -> None:
    pair.compare(produce("not-there", BATCH), range(3, 12), ignore=["error_message"])
    pair.compare(produce(topic, BATCH, partition=9), range(3, 12), ignore=["error_message"])


@pytest.mark.parametrize("offset", [-1, 11, 1_000_000])
def test_fetch_out_of_range(pair: Pair, topic: str, offset: int) -> None:
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(fetch(topic, offset), range(4, 13))


def test_fetch_what_is_not_there(pair: Pair, topic: str) -> None:
    pair.compare(fetch("not-there", 0), range(4, 13))
    pair.compare(fetch(topic, 0, partition=5), range(4, 13))


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_fetch_with_an_epoch(pair: Pair, topic: str, epoch: int) -> None:
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(fetch(topic, 0, current_leader_epoch=epoch), range(9, 13))


def test_fetch_small_limit_gives_the_first_batch_whole(pair: Pair, topic: str) -> None:
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(fetch(topic, 3, partition_max_bytes=1), range(4, 13))


@pytest.mark.parametrize("partition_max_bytes", [1, 100])
def test_small_limits_of_old_fetch_versions(
    pair: Pair, topic: str, partition_max_bytes: int
) -> None:
    """Up to version 2 the limit is hard: a batch of 221 bytes does not fit. Where one fits, Kafka
    adds the first bytes of a message behind it, which clients drop."""
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(fetch(topic, 3, partition_max_bytes=partition_max_bytes), range(4))


@pytest.mark.parametrize(
    "timestamp", [-1, -2, -3, -4, -5, -9, 0, TIME, TIME + 4, TIME + 9, TIME + 10]
)
@pytest.mark.parametrize("isolation", [0, 1])
def test_list_offsets(pair: Pair, topic: str, timestamp: int, isolation: int) -> None:
    def ask() -> ListOffsetsRequest:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=topic, partitions=[partition])],
        )

    versions = range(2 if isolation else 1, 10)
    pair.compare(ask(), versions)  # an empty log
    pair.compare(produce(topic, BATCH), [9])
    pair.compare(ask(), versions)


def test_list_offsets_of_what_is_not_there(pair: Pair, topic: str) -> None:
    for name, index in (("not-there", 0), (topic, 9)):
        partition = ListOffsetsPartition(partition_index=index, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[partition])]
        )
        pair.compare(request, range(1, 10))


@pytest.mark.parametrize("epoch", [-1, 0, 1, 9])
def test_offset_for_leader_epoch(pair: Pair, topic: str, epoch: int) -> None:
    pair.compare(produce(topic, BATCH), [9])
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    )
    pair.compare(request, range(5))


@pytest.mark.parametrize("offset", [-1, 4, 10, 11, -2])
def test_delete_records(pair: Pair, topic: str, offset: int) -> None:
    pair.compare(produce(topic, BATCH), [9])
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=5000
    )
    pair.compare(request, range(3))
    pair.compare(fetch(topic, 0), range(5, 13))
    pair.compare(fetch(topic, 10), range(5, 13))
