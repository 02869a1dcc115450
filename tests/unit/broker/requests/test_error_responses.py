"""Every API that is served has a response for a request that failed as a whole."""

from __future__ import annotations

import logging
import random
from typing import cast

import pytest

from ottla.broker.requests.error_responses import (
    MAX_MESSAGE,
    error_code,
    error_message,
    error_response,
    leader_and_isr_refused,
    stop_replica_refused,
)
from ottla.broker.requests.request_channel import HandlerEntry, RequestContext
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from ottla.protocol.primitives import MAX_STRING_LENGTH
from ottla.protocol.records import errors as records
from ottla.protocol.registry import API
from ottla.storage import errors as storage
from tests.doubles.all_messages import BY_NAME
from tests.doubles.api_routes import whole_table
from tests.doubles.error_codes import error_codes
from tests.doubles.message_values import ValueMaker
from tests.doubles.reference_codec import ReferenceCodec
from tests.doubles.request_context import FakeContext

CODE = ErrorCode.INVALID_REQUEST
WORDS = "what went wrong"
SEEDS = range(8)

# DescribeLogDirs has a code since version 3; before that no directories are its only error.
SILENT = {(35, 0), (35, 1), (35, 2)}


def responded(request: Message, version: int) -> tuple[FakeContext, Message | None]:
    """The response as a client gets it."""
    context = FakeContext(request.API_KEY, version)
    context.request = request
    response = error_response(cast(RequestContext, context), KafkaError(CODE, WORDS))
    if response is None:
        return context, None
    cls = type(response)
    return context, decoder(cls, version)(encoder(cls, version)(response), 0)[0]


@pytest.mark.parametrize("entry", whole_table(), ids=lambda entry: entry.name)
def test_every_version_of_every_api(entry: HandlerEntry) -> None:
    cls = API[entry.api_key].request
    schema = BY_NAME[cls.NAME].schema
    for version in range(entry.min_version, entry.max_version + 1):
        said = set()
        for seed in SEEDS:
            values = ValueMaker(schema, version, random.Random(seed)).values()
            frame = bytearray(ReferenceCodec(schema, version).encode(values))
            context, reply = responded(decoder(cls, version)(frame, 0)[0], version)
            if reply is None:
                assert context.closed_because is not None
            else:
                assert isinstance(reply, API[entry.api_key].response)
                said.update(error_codes(reply))
        assert said <= {0, CODE}
        assert CODE in said or (entry.api_key, version) in SILENT, version


def test_words_go_where_there_is_room_for_them() -> None:
    data = TopicProduceData("t", [PartitionProduceData(3, b"")])
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[data])
    _, response = responded(request, 9)
    assert isinstance(response, ProduceResponse)
    (row,) = response.responses[0].partition_responses
    assert (row.index, row.error_code, row.error_message) == (3, CODE, WORDS)
    assert (row.base_offset, row.log_append_time_ms, row.log_start_offset) == (-1, -1, -1)
    _, heartbeat = responded(HeartbeatRequest("g", 1, "m"), 4)
    assert heartbeat == HeartbeatResponse(error_code=CODE)


def test_a_producer_that_wants_no_response_is_hung_up_on() -> None:
    context, response = responded(ProduceRequest(acks=0, timeout_ms=1), 9)
    assert response is None
    assert context.closed_because == "a produce request with acks=0 failed"


def test_a_fetch_session_fails_as_one() -> None:
    topics = [FetchTopic("t", partitions=[FetchPartition(0)])]
    _, response = responded(FetchRequest(session_id=5, session_epoch=1, topics=topics), 12)
    assert isinstance(response, FetchResponse)
    assert (response.error_code, response.responses) == (CODE, [])
    _, response = responded(FetchRequest(topics=topics), 12)
    assert isinstance(response, FetchResponse)
    assert [row.error_code for row in response.responses[0].partitions] == [CODE]


def test_coordinators_are_named_one_by_one_since_version_4() -> None:
    _, response = responded(FindCoordinatorRequest("g"), 3)
    assert response == FindCoordinatorResponse(
        error_code=CODE, error_message=WORDS, node_id=-1, port=-1
    )
    _, response = responded(FindCoordinatorRequest(coordinator_keys=["g", "h"]), 4)
    assert isinstance(response, FindCoordinatorResponse)
    rows = [(row.key, row.node_id, row.error_code) for row in response.coordinators]
    assert rows == [("g", -1, CODE), ("h", -1, CODE)]


def test_what_cannot_be_decoded_has_no_response() -> None:
    context = FakeContext(3, 0)
    context.request = None
    assert error_response(cast(RequestContext, context), KafkaError(CODE)) is None


@pytest.mark.parametrize("version", [4, 5])
def test_a_leader_and_isr_request_gets_a_row_for_each_partition(version: int) -> None:
    states = [LeaderAndIsrPartitionState(partition_index=index) for index in (0, 2)]
    request = LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState("t", b"i" * 16, states)])
    _, response = responded(request, version)
    assert isinstance(response, LeaderAndIsrResponse)
    rows = [
        (row.topic_name, row.partition_index, row.error_code) for row in response.partition_errors
    ]
    for topic in response.topics:
        assert topic.topic_id == b"i" * 16
        rows += [("t", row.partition_index, row.error_code) for row in topic.partition_errors]
    assert rows == [("t", 0, CODE), ("t", 2, CODE)]


def test_a_stop_replica_request_gets_a_row_for_each_partition() -> None:
    states = [StopReplicaPartitionState(3, 1, delete_partition=True)]
    _, response = responded(
        StopReplicaRequest(topic_states=[StopReplicaTopicState("t", states)]), 4
    )
    assert isinstance(response, StopReplicaResponse)
    assert response.partition_errors == [StopReplicaPartitionError("t", 3, CODE)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "words"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (records.CorruptRecordError("x"), ErrorCode.CORRUPT_MESSAGE),
        (storage.LogDirectoryOffline("/disk", "x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ProtocolError("x"), ErrorCode.INVALID_REQUEST),
        (PermissionError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_what_is_foreseen(error: Exception, code: int) -> None:
    assert error_code(error) == code


def test_a_subclass_without_a_line_gets_the_code_of_its_base() -> None:
    class Odd(records.InvalidRecordError):
        pass

    assert error_code(Odd("x")) == ErrorCode.INVALID_RECORD


def test_unforeseen_errors_are_logged_and_hidden(caplog: pytest.LogCaptureFixture) -> None:
    error = ZeroDivisionError("inner workings")
    with caplog.at_level(logging.ERROR):
        assert error_code(error) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "the client gets UNKNOWN_SERVER_ERROR" in caplog.text
    assert error_message(error) is None


def test_words_are_for_clients_only_when_they_concern_them() -> None:
    assert error_message(KafkaError(3, "words")) == "words"
    assert error_message(KafkaError(3)) is None
    assert error_message(records.InvalidRecordError("no key")) == "no key"
    assert error_message(PermissionError(13, "/secret/path")) is None


def every_subclass(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(every_subclass(each) for each in cls.__subclasses__()))


def test_every_error_of_the_log_and_of_records_is_foreseen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bases aside, and what no client gets to see: errors of the start and of followers."""
    never_seen = {"StorageError", "ProducerError", "DirectoryInUse"}
    never_seen |= {"UnexpectedAppendOffset", "OffsetsOutOfOrder"}
    for base in (records.RecordsError, storage.StorageError):
        for cls in every_subclass(base):
            if cls.__name__ not in never_seen and cls.__module__.startswith(
                ("protocol", "storage")
            ):
                assert error_code(cls.__new__(cls)) != ErrorCode.UNKNOWN_SERVER_ERROR, cls
    assert caplog.text == ""


STALE = ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", [2, 4])
def test_leader_and_isr_by_name(version: int) -> None:
    request = LeaderAndIsrRequest(
        topic_states=[
            LeaderAndIsrTopicState(
                "t", partition_states=[LeaderAndIsrPartitionState(partition_index=3)]
            )
        ]
    )
    response = leader_and_isr_refused(request, version, STALE)
    assert response.error_code == STALE
    assert not response.topics
    rows = [(r.topic_name, r.partition_index, r.error_code) for r in response.partition_errors]
    assert rows == [("t", 3, STALE)]


def test_leader_and_isr_without_groups() -> None:
    states = [LeaderAndIsrPartitionState(topic_name="t", partition_index=1)]
    request = LeaderAndIsrRequest(ungrouped_partition_states=states)
    response = leader_and_isr_refused(request, 1, STALE)
    assert [(r.topic_name, r.partition_index) for r in response.partition_errors] == [("t", 1)]


def test_leader_and_isr_by_topic_id() -> None:
    topic = LeaderAndIsrTopicState(
        "t", b"i" * 16, [LeaderAndIsrPartitionState(partition_index=index) for index in (0, 2)]
    )
    response = leader_and_isr_refused(LeaderAndIsrRequest(topic_states=[topic]), 7, STALE)
    assert response.error_code == STALE
    assert not response.partition_errors
    (row,) = response.topics
    assert row.topic_id == b"i" * 16
    assert [(r.partition_index, r.error_code) for r in row.partition_errors] == [
        (0, STALE),
        (2, STALE),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        StopReplicaRequest(ungrouped_partitions=[StopReplicaPartitionV0("t", 1)]),
        StopReplicaRequest(topics=[StopReplicaTopicV1("t", [1])]),
        StopReplicaRequest(
            topic_states=[StopReplicaTopicState("t", [StopReplicaPartitionState(1)])]
        ),
    ],
)
def test_stop_replica(request_: StopReplicaRequest) -> None:
    response = stop_replica_refused(request_, STALE)
    assert response.error_code == STALE
    rows = [(r.topic_name, r.partition_index, r.error_code) for r in response.partition_errors]
    assert rows == [("t", 1, STALE)]


def test_a_message_fits_into_a_string_of_the_protocol() -> None:
    message = error_message(KafkaError(CODE, "\N{GRINNING FACE}" * 100_000))
    assert message is not None
    assert len(message) == MAX_MESSAGE
    assert len(message.encode()) < MAX_STRING_LENGTH
