"""Our client, both shells of it, against our broker in a process of its own."""

import asyncio
from collections.abc import Iterator

import pytest

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.operations import ANY_VERSION, Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import CODEC_NAMES, ZSTD
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import NewRecord
from ottla.protocol.topics import TopicPartition
from tests.doubles.async_client import AsyncClient
from tests.doubles.broker_process import start_broker

RECORDS: list[NewRecord] = [
    (1_700_000_000_000 + index, b"k%d" % (index % 7), b"value %d " % index * 20, [("h", b"x")])
    for index in range(300)
]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[BlockingClient]:
    with BlockingClient(bootstrap) as made:
        yield made


def create(client: BlockingClient, topic: str, partitions: int = 1) -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(topic, partitions, 1)], timeout_ms=10_000)
    response = client.call_controller(request)
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.NONE


def produce_request(partition: TopicPartition, records: bytes, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(partition.partition, records)]
    return ProduceRequest(None, acks, 10_000, [TopicProduceData(partition.topic, data)])


def fetch(
    client: BlockingClient, partition: TopicPartition, versions: Versions = ANY_VERSION
) -> bytes:
    leader = client.leader(partition)
    rows = [FetchPartition(partition.partition, fetch_offset=0, partition_max_bytes=1 << 20)]
    topic_id = client.state.topic_ids[partition.topic]
    topic = FetchTopic(partition.topic, partitions=rows, topic_id=topic_id)
    request = FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[topic])
    response = client.send(leader.node_id, request, versions=versions)
    assert isinstance(response, FetchResponse)
    row = response.responses[0].partitions[0]
    assert row.error_code == ErrorCode.NONE
    return bytes(row.records or b"")


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_batches_come_back_as_they_went(client: BlockingClient, codec: int) -> None:
    partition = TopicPartition(f"codec-{codec}", 0)
    create(client, partition.topic)
    response = client.call_leader(
        partition, produce_request(partition, build_batch(RECORDS, codec=codec))
    )
    assert isinstance(response, ProduceResponse)
    row = response.responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 0)
    rows = list(read_records(fetch(client, partition)))
    assert [each.offset for each in rows] == list(range(300))
    assert [(each.timestamp, each.key, each.value, each.headers) for each in rows] == RECORDS


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(ZSTD), ids=CODEC_NAMES[:ZSTD])
def test_what_old_producers_send_is_read_by_new_and_old_consumers(
    client: BlockingClient, magic: int, codec: int
) -> None:
    partition = TopicPartition(f"old-{magic}-{codec}", 0)
    create(client, partition.topic)
    rows = list(read_records(build_batch(RECORDS)))
    data = build_message_set(rows, magic=magic, codec=codec)
    leader = client.leader(partition)
    client.send(leader.node_id, produce_request(partition, data), versions=Versions(high=2))
    wanted = [(row.offset, row.key, row.value) for row in rows]
    for high in (None, 3, 1):  # Fetch 3 gets magic 1, Fetch 1 gets magic 0
        found = list(read_records(fetch(client, partition, Versions(high=high))))
        assert [(row.offset, row.key, row.value) for row in found] == wanted
        if magic == 1 and high != 1:
            assert [row.timestamp for row in found] == [row.timestamp for row in rows]


def test_topic_that_does_not_exist(client: BlockingClient) -> None:
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        client.leader(TopicPartition("nowhere", 0), timeout_ms=1_400)


def test_coordinator_is_found(client: BlockingClient) -> None:
    response = client.call_coordinator("a-group", ListGroupsRequest())
    assert isinstance(response, ListGroupsResponse)
    assert response.error_code == ErrorCode.NONE


def test_produce_without_acks_arrives(client: BlockingClient) -> None:
    partition = TopicPartition("no-acks", 0)
    create(client, partition.topic)
    client.call_leader(partition, produce_request(partition, build_batch(RECORDS), acks=0))
    assert len(list(read_records(fetch(client, partition)))) == 300


async def test_overlapping_calls_of_the_asyncio_client(bootstrap: str) -> None:
    with BlockingClient(bootstrap) as client:
        await asyncio.to_thread(create, client, "overlapping", 3)
    partitions = [TopicPartition("overlapping", index % 3) for index in range(30)]
    batch = build_batch(RECORDS, codec=ZSTD)
    async with AsyncClient(bootstrap) as made:
        replies = await asyncio.gather(
            *(
                made.call_leader(partition, produce_request(partition, batch))
                for partition in partitions
            )
        )
    offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for response in replies:
        assert isinstance(response, ProduceResponse)
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NONE
        offsets[row.index].append(row.base_offset)
    wanted = list(range(0, 3000, 300))
    assert [sorted(found) for found in offsets.values()] == [wanted] * 3
