"""The state machine of a connection, fed by hand."""

import pytest

from ottla.protocol.client.connection import ClientConnection, State
from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    BrokerConnectionError,
    ClientError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from ottla.protocol.client.sasl import PlainMechanism, ScramMechanism
from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.registry import ApiKey
from tests.doubles.scripted_broker import CLOSE, ScriptedBroker

NAME = "broker.example:9092"


def talk(connection: ClientConnection, broker: ScriptedBroker) -> list[object]:
    """Carry bytes back and forth until neither side has more to say; the responses."""
    responses: list[object] = []
    while output := connection.take_output():
        splitter = FrameSplitter(1 << 20)
        splitter.feed(output)
        while (frame := splitter.next_frame()) is not None:
            response = broker.response(frame)
            if response == CLOSE:
                raise connection.end_of_stream()
            if isinstance(response, bytes):
                responses += [found.message for found in connection.feed(response)]
    return responses


def connected(broker: ScriptedBroker, **options: object) -> ClientConnection:
    connection = ClientConnection(NAME, client_id="me", **options)  # type: ignore[arg-type]  # test
    connection.start(1000)
    talk(connection, broker)
    return connection


def test_versions_are_requested_first() -> None:
    broker = ScriptedBroker()
    connection = ClientConnection(NAME, client_id="me")
    assert connection.take_output() == b""
    connection.start(1000)
    assert not connection.is_ready
    assert connection.next_deadline_ms() == 1000
    talk(connection, broker)
    assert connection.is_ready
    assert connection.versions[ApiKey.METADATA] == (0, 12)
    assert connection.next_deadline_ms() is None
    ((header, request),) = broker.seen
    assert (header.api_key, header.api_version, header.client_id) == (18, 3, "me")
    assert isinstance(request, ApiVersionsRequest)
    assert request.client_software_name == "ottla"
    assert request.client_software_version


@pytest.mark.parametrize("highest", [0, 1, 2])
def test_older_brokers_get_a_second_request_in_a_version_they_have(highest: int) -> None:
    broker = ScriptedBroker()
    broker.versions[ApiKey.API_VERSIONS] = (0, highest)
    assert connected(broker).is_ready
    assert [header.api_version for header, _ in broker.seen] == [highest]


def test_very_old_brokers_say_unsupported_without_a_list() -> None:
    broker = ScriptedBroker()
    responses = [b"\0\0\0\x0a\0\0\0\0\0\x23\0\0\0\0", ApiVersionsResponse()]
    broker.responses[ApiKey.API_VERSIONS] = lambda header, request: responses.pop(0)
    connection = connected(broker)
    assert connection.is_ready
    assert [header.api_version for header, _ in broker.seen] == [3, 0]
    with pytest.raises(UnsupportedApiError, match=r"broker broker.example:9092 does not offer"):
        connection.send(MetadataRequest(), deadline_ms=2000)


def test_unsupported_even_in_version_0_is_the_end() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.API_VERSIONS] = lambda header, request: (
        b"\0\0\0\x0a" + header.correlation_id.to_bytes(4, "big") + b"\0\x23\0\0\0\0"
    )
    with pytest.raises(BadResponseError, match="UNSUPPORTED_VERSION"):
        connected(broker)


def test_closing_at_the_first_request_is_explained() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.API_VERSIONS] = CLOSE
    with pytest.raises(
        BrokerConnectionError, match=r"after the ApiVersions request.*security.protocol"
    ) as caught:
        connected(broker)
    assert caught.value.broker == NAME
    assert not caught.value.sent


def test_request_and_response() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse(error_code=15)
    connection = connected(broker)
    assert connection.send(ListGroupsRequest(), deadline_ms=5) == 1
    assert connection.in_flight == 1
    assert talk(connection, broker) == [ListGroupsResponse(error_code=15)]
    assert connection.in_flight == 0
    assert broker.seen[-1][0].api_version == 5


def test_requests_may_overlap_and_bytes_may_come_one_by_one() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse(error_code=15)
    broker.responses[ApiKey.DESCRIBE_CLUSTER] = DescribeClusterResponse(cluster_id="c")
    connection = connected(broker)
    first = connection.send(ListGroupsRequest(), deadline_ms=50)
    second = connection.send(DescribeClusterRequest(), deadline_ms=40)
    assert connection.next_deadline_ms() == 40
    splitter = FrameSplitter(1 << 20)
    splitter.feed(connection.take_output())
    back = b""
    while (frame := splitter.next_frame()) is not None:
        response = broker.response(frame)
        assert isinstance(response, bytes)
        back += response
    responses = []
    for position in range(len(back)):
        responses += connection.feed(back[position : position + 1])
    assert [response.correlation_id for response in responses] == [first, second]
    assert [type(response.message) for response in responses] == [
        ListGroupsResponse,
        DescribeClusterResponse,
    ]


def test_version_is_the_highest_that_both_have_within_limits() -> None:
    broker = ScriptedBroker()
    broker.versions[ApiKey.METADATA] = (3, 7)
    broker.versions[ApiKey.LIST_GROUPS] = (2, 99)
    connection = connected(broker)
    assert connection.choose_version(ApiKey.METADATA) == 7
    assert connection.choose_version(ApiKey.METADATA, None, 5) == 5
    assert connection.choose_version(ApiKey.METADATA, 7, 9) == 7
    assert connection.choose_version(ApiKey.LIST_GROUPS) == 5
    with pytest.raises(UnsupportedApiError, match=r"versions 3 to 7.*requested: 8 to any"):
        connection.choose_version(ApiKey.METADATA, 8)
    with pytest.raises(UnsupportedApiError, match="any to 2"):
        connection.send(MetadataRequest(), deadline_ms=1, max_version=2)
    assert connection.is_ready
    assert connection.take_output() == b""


def test_message_that_its_version_cannot_carry_leaves_the_connection_alone() -> None:
    connection = connected(ScriptedBroker())
    with pytest.raises(ProtocolError):
        connection.send(MetadataRequest(allow_auto_topic_creation=False), deadline_ms=1, version=0)
    assert connection.is_ready
    assert connection.in_flight == 0
    assert connection.take_output() == b""


def test_produce_without_acks_gets_no_response() -> None:
    connection = connected(ScriptedBroker())
    assert connection.send(ProduceRequest(acks=0, timeout_ms=5), deadline_ms=9) is None
    assert connection.take_output()
    assert connection.in_flight == 0


def test_deadline_of_a_request_ends_the_connection() -> None:
    connection = connected(ScriptedBroker())
    connection.send(ListGroupsRequest(), deadline_ms=70)
    connection.check_deadline(69)
    with pytest.raises(
        RequestTimedOutError, match="did not respond to ListGroups in time"
    ) as caught:
        connection.check_deadline(70)
    assert caught.value.sent
    assert connection.is_closed
    with pytest.raises(BrokerConnectionError, match="is closed, ListGroupsRequest was not sent"):
        connection.send(ListGroupsRequest(), deadline_ms=99)
    connection.check_deadline(1000)


def test_deadline_of_the_setup() -> None:
    connection = ClientConnection(NAME, client_id=None)
    connection.check_deadline(10)
    connection.start(100)
    with pytest.raises(RequestTimedOutError, match="requesting API versions") as caught:
        connection.check_deadline(100)
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "web server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "security.protocol to SSL"),
        (b"SSH-2.0-OpenSSH_9.2", "SSH server"),
        (b"\x7f\xff\xff\xff", "cannot be read"),
        (b"\0\0\0\x05\0\0\0\0\x09", "cannot be read"),
        (b"\0\0\0\x01\0", "cannot be read"),
    ],
)
def test_others_than_brokers_are_distinguished(data: bytes, words: str) -> None:
    connection = ClientConnection(NAME, client_id=None)
    connection.start(100)
    with pytest.raises(BadResponseError, match=words):
        connection.feed(data)
    assert connection.is_closed
    assert connection.feed(b"more") == []


def test_responses_out_of_order_are_refused() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse()
    connection = connected(broker)
    connection.send(ListGroupsRequest(), deadline_ms=70)
    splitter = FrameSplitter(1 << 20)
    splitter.feed(connection.take_output())
    frame = splitter.next_frame()
    assert frame is not None
    response = broker.response(frame)
    assert isinstance(response, bytes)
    with pytest.raises(BadResponseError, match="correlation id 7"):
        connection.feed(response[:4] + b"\0\0\0\x07" + response[8:])


def test_responses_to_nothing_are_refused() -> None:
    connection = connected(ScriptedBroker())
    with pytest.raises(BadResponseError, match="a response came without a request"):
        connection.feed(b"\0\0\0\x04\0\0\0\x09")


def test_responses_are_bounded() -> None:
    connection = connected(ScriptedBroker(), max_response_bytes=10_000)
    connection.send(ListGroupsRequest(), deadline_ms=70)
    with pytest.raises(BadResponseError):
        connection.feed((10_001).to_bytes(4, "big"))


def test_end_of_stream_names_what_was_asked() -> None:
    connection = connected(ScriptedBroker())
    assert "while it was idle" in str(connection.end_of_stream())
    connection = connected(ScriptedBroker())
    connection.send(ListGroupsRequest(), deadline_ms=70)
    error = connection.end_of_stream()
    assert "before it responded to ListGroups" in str(error)
    assert error.sent
    assert error.retriable


def test_correlation_ids_wrap() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse()
    connection = connected(broker)
    connection._correlation_id = 0x7FFFFFFF
    for wanted in (0x7FFFFFFF, 0, 1):
        assert connection.send(ListGroupsRequest(), deadline_ms=70) == wanted
        assert len(talk(connection, broker)) == 1


def with_plain(broker: ScriptedBroker) -> ClientConnection:
    return connected(broker, mechanism=PlainMechanism("alice", "secret"))


def test_sasl_plain() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse(mechanisms=["PLAIN"])
    broker.responses[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(session_lifetime_ms=9000)
    connection = with_plain(broker)
    assert connection.is_ready
    assert connection.session_lifetime_ms == 9000
    (_, (first, handshake), (_, authenticate)) = broker.seen
    assert isinstance(handshake, SaslHandshakeRequest)
    assert (handshake.mechanism, first.api_version) == ("PLAIN", 1)
    assert isinstance(authenticate, SaslAuthenticateRequest)
    assert authenticate.auth_bytes == b"\0alice\0secret"


def test_mechanism_that_is_not_offered() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse(
        error_code=33, mechanisms=["GSSAPI", "SCRAM-SHA-256"]
    )
    with pytest.raises(AuthenticationError, match="offers: GSSAPI, SCRAM-SHA-256"):
        with_plain(broker)


@pytest.mark.parametrize(
    ("message", "words"), [("Invalid credentials", "Invalid cred"), (None, "SASL_AUTHENTICATION")]
)
def test_wrong_password(message: str | None, words: str) -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(
        error_code=58, error_message=message
    )
    with pytest.raises(AuthenticationError, match=words) as caught:
        with_plain(broker)
    assert not caught.value.retriable


def test_listener_without_sasl() -> None:
    broker = ScriptedBroker()
    del broker.versions[ApiKey.SASL_HANDSHAKE]
    with pytest.raises(AuthenticationError, match="no SASL on this port"):
        with_plain(broker)


@pytest.mark.parametrize("key", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
def test_closing_during_authentication(key: int) -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[key] = CLOSE
    with pytest.raises(BrokerConnectionError, match="password may be wrong"):
        with_plain(broker)


def test_challenge_that_is_not_acceptable_names_the_broker() -> None:
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse()
    broker.responses[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(auth_bytes=b"e=no-way")
    with pytest.raises(AuthenticationError, match=f"{NAME}.*no-way"):
        connected(broker, mechanism=ScramMechanism("SCRAM-SHA-256", "a", "b"))


@pytest.mark.parametrize("state", [State.NEW, State.API_VERSIONS])
def test_nothing_is_sent_before_it_is_ready(state: State) -> None:
    connection = ClientConnection(NAME, client_id=None)
    if state is State.API_VERSIONS:
        connection.start(5)
    with pytest.raises(ClientError, match=state.value):
        connection.send(ListGroupsRequest(), deadline_ms=5)
