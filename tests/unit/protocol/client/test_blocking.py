"""The blocking client against a scripted broker behind real sockets."""

import socket
from collections.abc import Iterator

import pytest

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from ottla.protocol.client.cluster import Address, Leader
from ottla.protocol.client.errors import (
    BadResponseError,
    BrokerConnectionError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from ottla.protocol.client.operations import Operations, Versions
from ottla.protocol.client.security import Security
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeResponse
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition
from tests.doubles.scripted_broker import (
    CLOSE,
    SILENCE,
    ScriptedBroker,
    ScriptedServer,
    describes_itself,
)

TOPICS = {"t": {0: 0, 1: -1}}


@pytest.fixture
def broker() -> ScriptedBroker:
    scripted = ScriptedBroker()
    scripted.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse()
    return scripted


@pytest.fixture
def server(broker: ScriptedBroker) -> Iterator[ScriptedServer]:
    with ScriptedServer(broker) as running:
        broker.responses[ApiKey.METADATA] = describes_itself(lambda: running, TOPICS)
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[BlockingClient]:
    with BlockingClient(server.bootstrap, client_id="test", request_timeout_ms=5000) as made:
        yield made


def test_requests_go_where_they_belong(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.CREATE_TOPICS] = CreateTopicsResponse()
    broker.responses[ApiKey.PRODUCE] = ProduceResponse()
    broker.responses[ApiKey.FIND_COORDINATOR] = FindCoordinatorResponse(
        coordinators=[Coordinator("g", 0, "127.0.0.1", server.port)]
    )
    assert client.metadata(["t"]).cluster_id == "scripted"
    assert client.leader(TopicPartition("t", 0)) == Leader(0, 4)
    assert client.send(0, ListGroupsRequest()) == ListGroupsResponse()
    assert client.send(None, ListGroupsRequest()) == ListGroupsResponse()
    assert client.call(ListGroupsRequest()) == ListGroupsResponse()
    assert client.call_controller(CreateTopicsRequest()) == CreateTopicsResponse()
    produce = ProduceRequest(acks=1, timeout_ms=100)
    assert client.call_leader(TopicPartition("t", 0), produce) == ProduceResponse()
    assert client.call_coordinator("g", ListGroupsRequest()) == ListGroupsResponse()
    assert server.connections == 1
    assert {header.client_id for header, _ in broker.seen} == {"test"}
    assert broker.names().count("MetadataRequest") == 1


def test_versions(client: BlockingClient, broker: ScriptedBroker) -> None:
    broker.versions[ApiKey.LIST_GROUPS] = (1, 3)
    assert client.api_versions()[ApiKey.LIST_GROUPS] == (1, 3)
    assert client.api_versions(0)[ApiKey.LIST_GROUPS] == (1, 3)
    client.send(None, ListGroupsRequest(), versions=Versions(high=2))
    assert broker.seen[-1][0].api_version == 2
    with pytest.raises(UnsupportedApiError):
        client.send(None, ListGroupsRequest(), versions=Versions(4))
    assert client.send(None, ListGroupsRequest()) == ListGroupsResponse()


def test_produce_without_acks_does_not_wait(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.PRODUCE] = SILENCE
    produce = ProduceRequest(acks=0, timeout_ms=100)
    assert client.send(None, produce) == ProduceResponse()
    assert client.send(None, ListGroupsRequest()) == ListGroupsResponse()
    assert server.connections == 1


def test_large_responses_come_whole(client: BlockingClient, broker: ScriptedBroker) -> None:
    records = bytes(range(256)) * 20_000
    broker.responses[ApiKey.FETCH] = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)])]
    )
    response = client.send(None, FetchRequest())
    assert isinstance(response, FetchResponse)
    found = response.responses[0].partitions[0].records
    assert isinstance(found, memoryview)
    assert found == records


def test_silence_ends_at_the_deadline(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    client.send(None, ListGroupsRequest())  # it is connected
    broker.responses[ApiKey.LIST_GROUPS] = SILENCE
    with pytest.raises(RequestTimedOutError, match="did not respond to ListGroups") as caught:
        client.send(None, ListGroupsRequest(), timeout_ms=50)
    assert caught.value.broker == server.bootstrap
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse()
    assert client.send(None, ListGroupsRequest()) == ListGroupsResponse()
    assert server.connections == 2


def test_connection_that_was_closed_while_idle_is_replaced(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    client.send(None, ListGroupsRequest())
    server.close_connections()
    (connection,) = client._connections.values()
    deadline = monotonic_ms() + 5000
    while connection.is_usable():
        assert monotonic_ms() < deadline, "the end of the stream never came"
    client.send(None, ListGroupsRequest())
    assert server.connections == 2


def test_connection_closed_instead_of_a_response(
    client: BlockingClient, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.LIST_GROUPS] = [CLOSE, ListGroupsResponse()]
    with pytest.raises(BrokerConnectionError, match="before it responded to ListGroups"):
        client.send(None, ListGroupsRequest())
    broker.responses[ApiKey.LIST_GROUPS] = [CLOSE, ListGroupsResponse()]
    assert client.call(ListGroupsRequest()) == ListGroupsResponse()


def test_several_requests_are_in_flight(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    client.metadata(["t"])
    broker.responses[ApiKey.PRODUCE] = [ProduceResponse(throttle_time_ms=n) for n in range(4)]
    produce = ProduceRequest(acks=1, timeout_ms=100)
    begun = [client.begin(0, produce) for _ in range(4)]
    # A request in between gets its own response, and in any order the others get theirs.
    assert client.send(0, ListGroupsRequest()) == ListGroupsResponse()
    for number in (2, 0, 3, 1):
        assert client.complete(begun[number]) == ProduceResponse(throttle_time_ms=number)
    assert server.connections == 1
    broker.responses[ApiKey.PRODUCE] = SILENCE
    nothing = client.begin(0, ProduceRequest(acks=0, timeout_ms=100))
    assert client.complete(nothing) == ProduceResponse()
    with pytest.raises(NoBrokersAvailableError, match="broker 7 is not in the metadata"):
        client.begin(7, produce)


def test_a_closed_connection_ends_all_requests_in_flight(
    client: BlockingClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    client.metadata(["t"])
    broker.responses[ApiKey.LIST_GROUPS] = [SILENCE, CLOSE, ListGroupsResponse()]
    begun = [client.begin(0, ListGroupsRequest()) for _ in range(2)]
    for one in begun:
        with pytest.raises(BrokerConnectionError):
            client.complete(one)
    assert client.send(0, ListGroupsRequest()) == ListGroupsResponse()
    assert server.connections == 2


def test_no_leader(client: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operations, "_backoff_ms", lambda *_: 60_000)  # only one request is in time
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE: no leader of t-1"):
        client.leader(TopicPartition("t", 1))


def test_forgotten_leaders_are_requested_again(
    client: BlockingClient, broker: ScriptedBroker
) -> None:
    client.leader(TopicPartition("t", 0))
    client.forget_leader(TopicPartition("t", 0))
    client.leader(TopicPartition("t", 0))
    assert broker.names() == ["MetadataRequest"] * 2


def test_next_bootstrap_address_is_tried(server: ScriptedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with BlockingClient(f"127.0.0.1:{port},{server.bootstrap}") as client:
        assert client.metadata().cluster_id == "scripted"


def test_no_server_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with (
        BlockingClient(f"127.0.0.1:{port}") as client,
        pytest.raises(BrokerConnectionError, match=f"cannot connect to broker 127.0.0.1:{port}"),
    ):
        client.metadata()
    with (
        BlockingClient(f"127.0.0.1:{port},127.0.0.1:{port},localhost:{port}") as client,
        pytest.raises(NoBrokersAvailableError),
    ):
        client.metadata()


def test_broker_that_takes_the_connection_and_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        BlockingClient(f"127.0.0.1:{deaf.getsockname()[1]}") as client,
        pytest.raises(RequestTimedOutError, match="requesting API versions"),
    ):
        client.metadata(timeout_ms=50)


def test_what_is_no_broker(broker: ScriptedBroker, server: ScriptedServer) -> None:
    broker.responses[ApiKey.API_VERSIONS] = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with BlockingClient(server.bootstrap) as client, pytest.raises(BadResponseError, match="HTTP"):
        client.metadata()


def test_connections_are_bounded(broker: ScriptedBroker) -> None:
    with (
        ScriptedServer(broker) as one,
        ScriptedServer(broker) as two,
        BlockingClient(one.bootstrap, max_connections=1) as client,
    ):
        for server in (one, two, one):
            address = Address("127.0.0.1", server.port)
            client._connection(address, monotonic_ms() + 5000)
            assert list(client._connections) == [address]
        assert (one.connections, two.connections) == (2, 1)


def test_session_that_is_about_to_end_is_replaced(
    broker: ScriptedBroker, server: ScriptedServer
) -> None:
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[ApiKey.SASL_AUTHENTICATE] = [
        SaslAuthenticateResponse(session_lifetime_ms=1),
        SaslAuthenticateResponse(session_lifetime_ms=3_600_000),
    ]
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="p")
    with BlockingClient(server.bootstrap, security=security) as client:
        for _ in range(3):
            client.send(None, ListGroupsRequest())
    assert server.connections == 2


def test_a_closed_client_opens_again(client: BlockingClient, server: ScriptedServer) -> None:
    client.send(None, ListGroupsRequest())
    client.close()
    client.send(None, ListGroupsRequest())
    assert server.connections == 2


def test_connection_on_its_own(server: ScriptedServer, broker: ScriptedBroker) -> None:
    connection = BlockingConnection(Address("127.0.0.1", server.port), client_id=None)
    assert not connection.is_usable()
    connection.connect(monotonic_ms() + 5000)
    response = connection.request(ListGroupsRequest(), monotonic_ms() + 5000, version=1)
    assert response == ListGroupsResponse()
    assert broker.seen[-1][0].api_version == 1
    connection.close()
    assert not connection.is_usable()
