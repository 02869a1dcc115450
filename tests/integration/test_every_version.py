"""Every version of every API that the broker lists gets a response in that version's layout."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.record import Record
from ottla.protocol.registry import API
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.error_codes import error_codes

TOPIC = "every"
TIMEOUT_MS = 20_000

# Used between brokers; a client's minimal request gets an error and no more.
ENVELOPE = 58
OF_BROKERS = frozenset((4, 5, 6, 7, 27, 56, 67))

# The minimal requests of these can be carried out as they are.
WITHOUT_ERRORS = frozenset(
    (0, 1, 2, 3, 16, 18, 19, 21, 23, 32, 33, 34, 35, 44, 46, 48, 49, 60, 61, 66)
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("every")) as started:
        asyncio.run(create_topic(started))
        yield started


async def connect(broker: BrokerProcess) -> AsyncConnection:
    connection = AsyncConnection("127.0.0.1", broker.port)
    await connection.connect(TIMEOUT_MS)
    return connection


async def create_topic(broker: BrokerProcess) -> None:
    connection = await connect(broker)
    response = await connection.request(
        CreateTopicsRequest(topics=[CreatableTopic(TOPIC, 2, 1)], timeout_ms=TIMEOUT_MS), TIMEOUT_MS
    )
    assert [row.error_code for row in response.topics] == [0]  # type: ignore[attr-defined]  # any Message
    connection.close()


def records(version: int) -> bytes:
    if version >= 3:
        return build_batch([(1_000, b"key", b"value", [])])
    magic = 1 if version == 2 else 0
    timestamp = 1_000 if magic else -1
    return build_message_set([Record(0, timestamp, 0, b"key", b"value", [])], magic=magic)


def minimal(key: int, version: int, topic_id: bytes) -> Message:
    """A request that says as little as it can, about a topic that exists where it names one."""
    if key == 0:
        data = PartitionProduceData(0, records(version))
        return ProduceRequest(
            acks=1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(TOPIC, [data])]
        )
    if key == 1:
        partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(
            TOPIC if version < 13 else "", topic_id if version >= 13 else bytes(16), [partition]
        )
        return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic], session_epoch=-1)
    if key == 2:
        asked = ListOffsetsPartition(0, timestamp=-1)
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(TOPIC, [asked])])
    if key == 3:
        return MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    if key == 18:
        name, number = ("tests", "1") if version >= 3 else ("", "")
        return ApiVersionsRequest(name, number)
    if key == 19:
        # Version 4 brought the defaults.
        count = -1 if version >= 4 else 1
        return CreateTopicsRequest(topics=[CreatableTopic(f"made-{version}", count, count)])
    if key == 21:
        asked_of = DeleteRecordsPartition(1, 0)
        return DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(TOPIC, [asked_of])], timeout_ms=TIMEOUT_MS
        )
    if key == 23:
        end_of = OffsetForLeaderPartition(0, leader_epoch=0)
        return OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(TOPIC, [end_of])])
    if key == 24:
        # The two layouts of this request exclude each other.
        return AddPartitionsToTxnRequest()
    if key == 32:
        return DescribeConfigsRequest(
            resources=[DescribeConfigsResource(2, TOPIC, None)], include_synonyms=version >= 1
        )
    if key == 33:
        return AlterConfigsRequest(resources=[AlterConfigsResource(2, TOPIC, [])])
    if key == 37:
        wanted = CreatePartitionsTopic(TOPIC, 2, None)
        return CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
    if key == 43:
        return ElectLeadersRequest(
            topic_partitions=[TopicPartitions(TOPIC, [0])], timeout_ms=TIMEOUT_MS
        )
    if key == 44:
        return IncrementalAlterConfigsRequest(resources=[IncrementalResource(2, TOPIC, [])])
    return API[key].request()


async def every_response(broker: BrokerProcess) -> dict[tuple[int, int], Message]:
    connection = await connect(broker)
    topics = await connection.request(
        MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), TIMEOUT_MS
    )
    topic_id = topics.topics[0].topic_id  # type: ignore[attr-defined]  # any Message
    responses: dict[tuple[int, int], Message] = {}
    for key, (lowest, highest) in sorted(connection.versions.items()):
        assert (lowest, highest) == (API[key].min_version, API[key].max_version)
        if key == ENVELOPE:
            continue  # Listed, and closes the connection.
        for version in range(lowest, highest + 1):
            request = minimal(key, version, topic_id)
            responses[key, version] = await connection.request(request, TIMEOUT_MS, version=version)
    connection.close()
    return responses


def test_every_listed_version_gets_a_response(broker: BrokerProcess) -> None:
    responses = asyncio.run(every_response(broker))
    for (key, version), reply in responses.items():
        assert isinstance(reply, API[key].response), f"{API[key].name} version {version}"
        codes = set(error_codes(reply))
        assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes, f"{API[key].name} version {version}"
        if key in WITHOUT_ERRORS:
            assert codes <= {ErrorCode.NONE}, f"{API[key].name} version {version}: {codes}"
    assert "Traceback" not in broker.log()


def test_what_is_listed_is_what_kafka_3_9_lists(broker: BrokerProcess) -> None:
    async def listed() -> set[int]:
        connection = await connect(broker)
        versions = set(connection.versions)
        connection.close()
        return versions

    needed = {*range(52), 57, 58, 60, 61, 65, 66, 68, 69}
    assert needed | OF_BROKERS <= asyncio.run(listed())
