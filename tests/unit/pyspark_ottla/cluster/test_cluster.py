"""Questions to brokers and what is made of the responses, with a client that has no socket."""

from __future__ import annotations

import pytest

from ottla.protocol.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    UnsupportedApiError,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.fetch_source import FetchSource
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import parse_client_options
from pyspark_ottla.options.options import Subscription
from tests.doubles.scripted_client import ScriptedClient

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class QuickCluster(KafkaCluster):
    """Sleeping takes no time; how often is remembered."""

    sleeps = 0

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1


def cluster(client: ScriptedClient, **given: str) -> QuickCluster:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    base = {"kafka.bootstrap.servers": "b:1", "kafka.default.api.timeout.ms": "400"}
    return QuickCluster(client.as_client, parse_client_options(base | named, writes=False))


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient({"t": 2, "u": 1, "__inside": 1})


# --- topics ----------------------------------------------------------------------------------


def test_subscriptions(client: ScriptedClient) -> None:
    client.internal = {"__inside"}
    asked = cluster(client)
    assert asked.partitions(Subscription(topics=frozenset({"t", "u"}))) == {A, B, C}
    assert asked.partitions(Subscription(pattern=".*")) == {A, B, C}, "internal ones are left out"
    assert asked.partitions(Subscription(pattern="u|__inside")) == {C}
    assert asked.partitions(Subscription(partitions=frozenset({B}))) == {B}


def test_a_topic_that_is_not_there(client: ScriptedClient) -> None:
    asked = cluster(client)
    with pytest.raises(ConnectorError, match="brokers at b:1 have no topic x, y"):
        asked.partitions(Subscription(topics=frozenset({"t", "x", "y"})))
    assert asked.sleeps == 3, "looked again, as fetchOffset.numRetries says"


def test_a_partition_that_is_not_there(client: ScriptedClient) -> None:
    with pytest.raises(ConnectorError, match="assign names t-7, which the brokers do not have"):
        cluster(client).partitions(Subscription(partitions=frozenset({A, TopicPartition("t", 7)})))


def test_a_topic_one_may_not_see(client: ScriptedClient) -> None:
    client.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ConnectorError, match=r"NOT_AUTHORIZED.*about the topic t is not allowed"):
        cluster(client).partitions(Subscription(topics=frozenset({"t"})))


def test_a_topic_to_write_to_may_be_made_by_asking(client: ScriptedClient) -> None:
    client.created_when_asked = {"new": 5}
    assert cluster(client).partition_count("new") == 5
    with pytest.raises(ConnectorError, match="have no topic other and did not create it"):
        cluster(client).partition_count("other")


def test_topic_ids(client: ScriptedClient) -> None:
    client.topic_ids = {"t": bytes(15) + b"\1"}
    asked = cluster(client)
    assert asked.topic_ids(["t", "u", "gone"]) == {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}
    client.topic_ids = {"t": bytes(15) + b"\2"}
    assert asked.topic_ids(["t", "u"]) == {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}
    assert client.metadata_requests == 1, "what the last metadata said"
    asked.partitions(Subscription(topics=frozenset({"t"})))
    assert asked.topic_ids(["t", "u"]) == {"t": "AAAAAAAAAAAAAAAAAAAAAg"}


# --- patience --------------------------------------------------------------------------------


def test_brokers_that_come_back(client: ScriptedClient) -> None:
    client.failures = [BrokerConnectionError("away"), BrokerConnectionError("away")]
    assert cluster(client).partitions(Subscription(topics=frozenset({"u"}))) == {C}


def test_a_broker_that_has_just_started_knows_no_topic(client: ScriptedClient) -> None:
    client.empty_responses = 1
    assert cluster(client).partitions(Subscription(pattern="t|u")) == {A, B, C}
    respond_with_offsets(client, {A: 10, B: 20, C: 30}, {C: [ErrorCode.NOT_LEADER_OR_FOLLOWER]})
    client.empty_responses = 1
    assert cluster(client).offsets_at({A: 0, C: 0}) == {A: 10, C: 30}, "not gone"
    client.empty_responses = 1000
    with pytest.raises(ConnectorError, match=r"BROKER_UNAVAILABLE.*no metadata of its cluster"):
        cluster(client).partitions(Subscription(pattern=".*"))


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (BrokerConnectionError("cannot connect to b:1"), "BROKER_UNAVAILABLE"),
        (AuthenticationError("wrong password"), "AUTHENTICATION_FAILED"),
        (UnsupportedApiError("too old"), "BROKER_INCOMPATIBLE"),
    ],
)
def test_brokers_that_do_not(client: ScriptedClient, error: Exception, condition: str) -> None:
    client.failures = [error] * 1000
    with pytest.raises(ConnectorError, match=f"{condition}.*{error}"):
        cluster(client).partitions(Subscription(topics=frozenset({"u"})))


# --- offsets ---------------------------------------------------------------------------------


def respond_with_offsets(
    client: ScriptedClient, ends: dict[TopicPartition, int], codes: dict[TopicPartition, list[int]]
) -> None:
    """Offsets are `ends` plus the timestamp requested; `codes` come first, one a response."""

    def response(request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                code = codes[tp].pop(0) if codes.get(tp) else 0
                offset = ends[tp] + part.timestamp
                rows.append(
                    ListOffsetsPartitionResponse(
                        partition_index=tp.partition, error_code=code, offset=offset
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    client.response(ListOffsetsRequest, response)


def test_one_request_to_each_leader(client: ScriptedClient) -> None:
    respond_with_offsets(client, {A: 10, B: 20, C: 30}, {})
    found = cluster(client).offsets_at({A: 5, B: 6, C: -1})
    assert found == {A: 15, B: 26, C: 29}
    assert sorted(node for node, _ in client.sent if node is not None) == [0, 1]
    requests = [request for _, request in client.sent]
    assert all(isinstance(r, ListOffsetsRequest) and r.replica_id == -1 for r in requests)


def test_read_committed_requests_the_stable_end(client: ScriptedClient) -> None:
    respond_with_offsets(client, {A: 10}, {})
    committed = cluster(client, isolation_level="read_committed")
    assert committed.offsets_at({A: -1}) == committed.high_watermarks([A])
    requests = [each for _, each in client.sent if isinstance(each, ListOffsetsRequest)]
    assert [each.isolation_level for each in requests] == [1, 0]


def test_leaders_that_move_are_found_again(client: ScriptedClient) -> None:
    respond_with_offsets(client, {A: 10, B: 20}, {B: [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2})
    assert cluster(client).offsets_at({A: 0, B: 0}) == {A: 10, B: 20}
    assert client.metadata_requests == 3


def test_partitions_that_are_gone_are_left_out(client: ScriptedClient) -> None:
    respond_with_offsets(client, {A: 10}, {})
    gone = TopicPartition("gone", 0), TopicPartition("t", 9)
    assert cluster(client).offsets_at({A: 0, gone[0]: 0, gone[1]: 0}) == {A: 10}


def test_a_partition_without_a_leader_is_waited_for(client: ScriptedClient) -> None:
    client.leaderless = {B}
    respond_with_offsets(client, {A: 10}, {})
    with pytest.raises(ConnectorError, match=r"offsets of t-1 failed .LEADER_NOT_AVAILABLE"):
        cluster(client).offsets_at({A: 0, B: 0})


def test_a_final_code_is_raised(client: ScriptedClient) -> None:
    respond_with_offsets(client, {A: 10}, {A: [ErrorCode.TOPIC_AUTHORIZATION_FAILED]})
    with pytest.raises(ConnectorError, match=r"NOT_AUTHORIZED.*offsets of t-0"):
        cluster(client).offsets_at({A: 0})


# --- fetching --------------------------------------------------------------------------------


def respond_to_fetch(client: ScriptedClient, data: PartitionData, code: int = 0) -> None:
    topic = FetchableTopicResponse(topic="t", partitions=[data])
    client.response(
        FetchRequest,
        lambda request: FetchResponse(throttle_time_ms=7, error_code=code, responses=[topic]),
    )


def test_a_fetch_says_what_the_options_say(client: ScriptedClient) -> None:
    respond_to_fetch(client, PartitionData(partition_index=1))
    options = {"isolation_level": "read_committed", "client_rack": "r", "fetch_min_bytes": "5"}
    data, throttle_ms = cluster(client, **options).fetch(B, 40, 1000, 9000, FetchSource())
    assert (data.partition_index, throttle_ms) == (1, 7)
    [(node, request)] = client.sent
    assert isinstance(request, FetchRequest)
    assert (node, request.max_bytes, request.isolation_level) == (1, 1000, 1)
    assert (request.rack_id, request.min_bytes) == ("r", 5)
    part = request.topics[0].partitions[0]
    assert (part.fetch_offset, part.partition_max_bytes) == (40, 1000)


def test_a_fetch_from_another_replica_and_by_topic_id(client: ScriptedClient) -> None:
    respond_to_fetch(client, PartitionData(partition_index=1))
    asked = cluster(client, client_rack="r")
    asked.fetch(B, 40, 1000, 9000, FetchSource(7, topic_id="AAAAAAAAAAAAAAAAAAAAAQ"))
    asked.fetch(B, 40, 1000, 9000)
    (node, named), (leader, plain) = client.sent
    assert isinstance(named, FetchRequest)
    assert isinstance(plain, FetchRequest)
    assert (node, named.topics[0].topic_id, named.rack_id) == (7, bytes(15) + b"\1", "r")
    assert (leader, plain.topics[0].topic_id, plain.rack_id) == (1, bytes(16), "")


def test_whether_the_metadata_has_a_partition(client: ScriptedClient) -> None:
    asked = cluster(client)
    assert asked.has_partition(B, None)
    assert not asked.has_partition(TopicPartition("t", 2), None)
    assert not asked.has_partition(TopicPartition("gone", 0), None)
    client.topic_ids = {"t": bytes(15) + b"\1"}
    assert asked.has_partition(B, "AAAAAAAAAAAAAAAAAAAAAQ")
    assert not asked.has_partition(B, "AAAAAAAAAAAAAAAAAAAAAg")
    client.leaderless = {B}
    assert asked.has_partition(B, None)
    client.failures = [AuthenticationError("wrong password")]
    with pytest.raises(ConnectorError, match="AUTHENTICATION_FAILED"):
        asked.has_partition(B, None)


def test_where_the_log_on_the_leaders_disk_begins(client: ScriptedClient) -> None:
    respond_with_offsets(client, {B: 60}, {})
    assert cluster(client).local_log_start(B) == 56, "the offset plus the timestamp -4"
    respond_with_offsets(client, {B: 60}, {B: [ErrorCode.UNSUPPORTED_VERSION]})
    assert cluster(client).local_log_start(B) is None


def test_an_respond_without_the_partition_is_an_error(client: ScriptedClient) -> None:
    respond_to_fetch(client, PartitionData(partition_index=0))
    with pytest.raises(KafkaError, match="left the partition out"):
        cluster(client).fetch(B, 0, 1000, 9000)
    respond_to_fetch(client, PartitionData(partition_index=1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    with pytest.raises(KafkaError, match="FETCH_SESSION_ID_NOT_FOUND"):
        cluster(client).fetch(B, 0, 1000, 9000)


def test_the_size_of_records_is_measured_from_the_batch_they_begin_in(
    client: ScriptedClient,
) -> None:
    batch = bytes(build_batch([(0, None, b"x" * 93, None)] * 10, base_offset=100))
    respond_to_fetch(client, PartitionData(partition_index=1, records=batch))
    assert cluster(client).bytes_per_offset(B, 107) == len(batch) / 10
    respond_to_fetch(client, PartitionData(partition_index=1, records=b""))
    assert cluster(client).bytes_per_offset(B, 107) is None
    respond_to_fetch(client, PartitionData(partition_index=1), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert cluster(client).bytes_per_offset(B, 107) is None
