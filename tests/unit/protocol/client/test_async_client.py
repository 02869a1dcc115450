"""The asyncio client against a scripted broker behind real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.protocol.client.aio_connection import RECEIVE_BYTES
from ottla.protocol.client.cluster import Leader
from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    BrokerConnectionError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from ottla.protocol.client.operations import Operations
from ottla.protocol.client.security import Security
from ottla.protocol.errors import KafkaError
from ottla.protocol.framing import LONG_BUFFER_BYTES
from ottla.protocol.headers import encode_response
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
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
from tests.doubles.async_client import AsyncClient, AsyncConnection
from tests.doubles.pace import steps_per_turn
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
async def client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.bootstrap, client_id="test", request_timeout_ms=5000) as made:
        yield made


@pytest.fixture
async def connection(server: ScriptedServer) -> AsyncIterator[AsyncConnection]:
    made = AsyncConnection("127.0.0.1", server.port, client_id="test", max_in_flight=2)
    await made.connect(5000)
    yield made
    made.close()


async def test_requests_go_where_they_belong(
    client: AsyncClient, server: ScriptedServer, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.CREATE_TOPICS] = CreateTopicsResponse()
    broker.responses[ApiKey.PRODUCE] = ProduceResponse()
    broker.responses[ApiKey.FIND_COORDINATOR] = FindCoordinatorResponse(
        coordinators=[Coordinator("g", 0, "127.0.0.1", server.port)]
    )
    assert (await client.metadata(["t"])).cluster_id == "scripted"
    assert await client.leader(TopicPartition("t", 0)) == Leader(0, 4)
    assert await client.send(0, ListGroupsRequest()) == ListGroupsResponse()
    assert await client.send(None, ListGroupsRequest()) == ListGroupsResponse()
    assert await client.call(ListGroupsRequest()) == ListGroupsResponse()
    assert await client.call_controller(CreateTopicsRequest()) == CreateTopicsResponse()
    produce = ProduceRequest(acks=1, timeout_ms=100)
    assert await client.call_leader(TopicPartition("t", 0), produce) == ProduceResponse()
    assert await client.call_coordinator("g", ListGroupsRequest()) == ListGroupsResponse()
    assert server.connections == 1
    assert {header.client_id for header, _ in broker.seen} == {"test"}
    client.forget_leader(TopicPartition("t", 0))
    assert await client.leader(TopicPartition("t", 0)) == Leader(0, 4)
    assert broker.names().count("MetadataRequest") == 2


async def test_calls_may_overlap_on_one_connection(
    client: AsyncClient, server: ScriptedServer
) -> None:
    responses = await asyncio.gather(
        *(client.send(None, ListGroupsRequest(), timeout_ms=5000) for _ in range(40))
    )
    assert responses == [ListGroupsResponse()] * 40
    assert server.connections == 1


async def test_responses_go_to_those_who_asked(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.DESCRIBE_CLUSTER] = DescribeClusterResponse(cluster_id="c")
    groups, cluster = await asyncio.gather(
        connection.request(ListGroupsRequest(), 5000, version=2),
        connection.request(DescribeClusterRequest(), 5000),
    )
    assert isinstance(groups, ListGroupsResponse)
    assert isinstance(cluster, DescribeClusterResponse)
    assert {header.api_version for header, _ in broker.seen if header.api_key == 16} == {2}


async def test_requests_in_flight_are_bounded(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.LIST_GROUPS] = SILENCE
    waiting = [asyncio.ensure_future(connection.request(ListGroupsRequest(), 5000)) for _ in "ab"]  # noqa: TID251 - tests are their own keepers
    await asyncio.sleep(0)
    assert connection.in_flight == 2
    with pytest.raises(RequestTimedOutError, match="earlier requests are still waiting") as caught:
        await connection.request(ListGroupsRequest(), 20)
    assert not caught.value.sent
    assert connection.is_usable
    connection.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, BrokerConnectionError) for result in results)


async def test_a_slot_goes_to_the_first_that_waits(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    """Of those that have not given up."""
    ended: list[str] = []

    async def call(name: str) -> None:
        await connection.request(ListGroupsRequest(), 5000)
        ended.append(name)
        if name == "a":
            calls["c"].cancel()  # which has just got the slot

    calls = {name: asyncio.ensure_future(call(name)) for name in "abcde"}  # noqa: TID251 - tests are their own keepers
    await asyncio.sleep(0)
    assert connection.in_flight == 2
    calls["d"].cancel()
    await asyncio.gather(*calls.values(), return_exceptions=True)
    await call("f")
    assert ended == ["a", "b", "e", "f"]
    # No slot was lost.
    assert await asyncio.gather(*(call(name) for name in "gh")) == [None, None]
    assert connection.is_usable


async def test_a_response_in_the_last_moment_is_one(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    """The request was not resumed yet when its time was over."""
    waiting = asyncio.ensure_future(connection.request(ListGroupsRequest(), 5000))  # noqa: TID251 - tests are their own keepers
    await asyncio.sleep(0)
    (response,) = connection._responses.values()
    response.add_done_callback(lambda _: connection._expire(response))
    assert await waiting == ListGroupsResponse()
    assert connection.is_usable


async def test_silence_ends_the_connection_for_all_callers(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.LIST_GROUPS] = SILENCE
    first, second = await asyncio.gather(
        connection.request(ListGroupsRequest(), 50),
        connection.request(ListGroupsRequest(), 5000),
        return_exceptions=True,
    )
    for failure in (first, second):
        assert isinstance(failure, RequestTimedOutError)
        assert "did not respond to ListGroups" in str(failure)
        assert failure.sent
    assert not connection.is_usable
    with pytest.raises(BrokerConnectionError, match="is closed"):
        await connection.request(ListGroupsRequest(), 50)


async def test_a_cancelled_request_ends_the_connection(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.LIST_GROUPS] = SILENCE
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await connection.request(ListGroupsRequest(), 5000)
    assert not connection.is_usable


async def test_produce_without_acks_does_not_wait(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.PRODUCE] = SILENCE
    produce = ProduceRequest(acks=0, timeout_ms=100)
    assert await connection.request(produce, 5000) == ProduceResponse()
    assert await connection.request(ListGroupsRequest(), 5000) == ListGroupsResponse()


async def test_version_that_the_broker_lacks(connection: AsyncConnection) -> None:
    connection._protocol.versions[ApiKey.LIST_GROUPS] = (90, 99)
    with pytest.raises(UnsupportedApiError):
        await connection.request(ListGroupsRequest(), 5000)
    assert connection.is_usable
    assert connection.versions[ApiKey.LIST_GROUPS] == (90, 99)


async def test_connection_closed_instead_of_a_response(
    client: AsyncClient, broker: ScriptedBroker
) -> None:
    broker.responses[ApiKey.LIST_GROUPS] = [CLOSE, ListGroupsResponse()]
    with pytest.raises(BrokerConnectionError, match="before it responded to ListGroups"):
        await client.send(None, ListGroupsRequest())
    broker.responses[ApiKey.LIST_GROUPS] = [CLOSE, ListGroupsResponse()]
    assert await client.call(ListGroupsRequest()) == ListGroupsResponse()


async def test_connection_that_was_closed_while_idle_is_replaced(
    client: AsyncClient, server: ScriptedServer
) -> None:
    await client.send(None, ListGroupsRequest())
    (connection,) = client._connections.values()
    server.close_connections()
    async with asyncio.timeout(60):
        while connection.is_usable:  # noqa: ASYNC110 - the product has no event for a test
            await asyncio.sleep(0)
    await client.send(None, ListGroupsRequest())
    assert server.connections == 2


async def test_no_leader(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operations, "_backoff_ms", lambda *_: 60_000)  # only one request is in time
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE: no leader of t-1"):
        await client.leader(TopicPartition("t", 1))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
        return port


async def test_next_bootstrap_address_is_tried(server: ScriptedServer) -> None:
    async with AsyncClient(f"127.0.0.1:{unused_port()},{server.bootstrap}") as client:
        assert (await client.metadata()).cluster_id == "scripted"


async def test_no_server_there() -> None:
    async with AsyncClient(f"127.0.0.1:{unused_port()}") as client:
        with pytest.raises(BrokerConnectionError, match=r"cannot connect to broker 127\.0\.0\.1"):
            await client.metadata()
    async with AsyncClient(f"127.0.0.1:{unused_port()},localhost:{unused_port()}") as client:
        with pytest.raises(NoBrokersAvailableError):
            await client.metadata()


async def test_broker_that_takes_the_connection_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        async with AsyncClient(f"127.0.0.1:{deaf.getsockname()[1]}") as client:
            with pytest.raises(RequestTimedOutError, match="requesting API versions"):
                await client.metadata(timeout_ms=50)


async def test_what_is_no_broker(broker: ScriptedBroker, server: ScriptedServer) -> None:
    broker.responses[ApiKey.API_VERSIONS] = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    async with AsyncClient(server.bootstrap) as client:
        with pytest.raises(BadResponseError, match="HTTP"):
            await client.metadata()


async def test_connections_are_bounded_and_busy_ones_kept(broker: ScriptedBroker) -> None:
    with ScriptedServer(broker) as one, ScriptedServer(broker) as two:
        async with AsyncClient(one.bootstrap, max_connections=1) as client:
            await client.send(None, ListGroupsRequest())
            client.state.bootstrap = [client.state.bootstrap[0]._replace(port=two.port)]
            await client.send(None, ListGroupsRequest())
            assert [address.port for address in client._connections] == [two.port]
            (busy,) = client._connections.values()
            broker.responses[ApiKey.LIST_GROUPS] = SILENCE
            waiting = asyncio.ensure_future(busy.request(ListGroupsRequest(), 5000))  # noqa: TID251 - as above
            await asyncio.sleep(0)
            client.state.bootstrap = [client.state.bootstrap[0]._replace(port=one.port)]
            with pytest.raises(BrokerConnectionError, match="max_connections"):
                await client.send(None, ListGroupsRequest())
            busy.close()
            with pytest.raises(BrokerConnectionError):
                await waiting


async def test_session_that_is_about_to_end_is_replaced(
    broker: ScriptedBroker, server: ScriptedServer
) -> None:
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[ApiKey.SASL_AUTHENTICATE] = [
        SaslAuthenticateResponse(session_lifetime_ms=1),
        SaslAuthenticateResponse(session_lifetime_ms=3_600_000),
    ]
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="p")
    async with AsyncClient(server.bootstrap, security=security) as client:
        for _ in range(3):
            await client.send(None, ListGroupsRequest())
    assert server.connections == 2


async def test_wrong_password(broker: ScriptedBroker, server: ScriptedServer) -> None:
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(58, "go away")
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="p")
    async with AsyncClient(server.bootstrap, security=security) as client:
        with pytest.raises(AuthenticationError, match="go away"):
            await client.call(ListGroupsRequest())
    assert server.connections == 1


async def test_closing_while_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        connection = AsyncConnection("127.0.0.1", deaf.getsockname()[1])

        async def close_soon() -> None:
            await asyncio.sleep(0.02)
            connection.close()

        results = await asyncio.gather(
            connection.connect(5000), close_soon(), return_exceptions=True
        )
    assert isinstance(results[0], BrokerConnectionError)
    assert "closed on our side" in str(results[0])


def test_it_runs_on_uvloop_as_well(server: ScriptedServer, broker: ScriptedBroker) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def ask() -> list[object]:
        async with AsyncClient(server.bootstrap, request_timeout_ms=5000) as client:
            fine = await asyncio.gather(
                *(client.send(None, ListGroupsRequest()) for _ in range(10))
            )
            broker.responses[ApiKey.LIST_GROUPS] = SILENCE
            late = await asyncio.gather(
                client.send(None, ListGroupsRequest(), timeout_ms=30), return_exceptions=True
            )
        return [*fine, *late]

    *fine, late = uvloop.run(ask())
    assert fine == [ListGroupsResponse()] * 10
    assert isinstance(late, RequestTimedOutError)


async def test_a_long_response_is_received_where_it_stays(
    connection: AsyncConnection, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the memory is used for the next one as soon as no view of its records exists."""
    in_place = 0
    on_received = connection.on_received

    def count(size: int) -> None:
        nonlocal in_place
        in_place += size
        on_received(size)

    monkeypatch.setattr(connection, "on_received", count)
    sizes = (1_000_000, 500_000, 100, 900_000)
    for size in sizes:
        records = b"r" * size
        rows = [PartitionData(0, 0, 9, 9, 0, records=records)]
        broker.responses[ApiKey.FETCH] = FetchResponse(
            responses=[FetchableTopicResponse("t", partitions=rows)]
        )
        response = await connection.request(FetchRequest(max_wait_ms=0), version=12)
        assert isinstance(response, FetchResponse)
        found = response.responses[0].partitions[0].records
        assert found == records
        assert isinstance(found, memoryview)
        assert (len(found.obj) == LONG_BUFFER_BYTES) == (size > 100)
        del found, response
    # All but the first read of each.
    assert sum(sizes) - 3 * RECEIVE_BYTES <= in_place < sum(sizes)


def long_response(partitions: int) -> FetchResponse:
    rows = [PartitionData(index, records=b"") for index in range(partitions)]
    return FetchResponse(responses=[FetchableTopicResponse(topic_id=bytes(16), partitions=rows)])


async def test_a_long_response_is_decoded_in_turns(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    expected = broker.responses[ApiKey.FETCH] = long_response(10_000)
    request = FetchRequest(replica_id=-1)
    assert await connection.request(request, 5000, version=17) == expected
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = spawn(count(), name="count")
    with steps_per_turn(1):
        assert await connection.request(request, 5000, version=17, in_turns=True) == expected
    counting.cancel()
    assert turns >= 10_000 // 64


async def test_a_long_response_that_cannot_be_read(
    connection: AsyncConnection, broker: ScriptedBroker
) -> None:
    """It is noticed in a later turn. The connection is of no more use, as after a short one."""
    whole = encode_response(ApiKey.FETCH, 17, 0, long_response(10_000))
    assert isinstance(whole[0], bytes)
    body = whole[0][4:-1] + b"\x01"
    broker.responses[ApiKey.FETCH] = lambda header, request: (
        len(body).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + body[4:]
    )
    with pytest.raises(BadResponseError, match="sent something that cannot be read"):
        await connection.request(FetchRequest(replica_id=-1), 5000, version=17, in_turns=True)
    assert not connection.is_usable
