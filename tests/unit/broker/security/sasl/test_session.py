"""The state machine that lets clients in, over real sockets."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.handlers.security import sasl
from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.sasl import scram_credentials
from ottla.broker.security.sasl import session as sasl_session
from ottla.broker.security.sasl.exchanges import (
    AuthenticationWaits,
    Exchange,
    PlainExchange,
    ScramExchange,
)
from ottla.broker.security.sasl.session import SaslListener, SaslSession
from ottla.protocol.client.sasl import ScramMechanism
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.registry import ApiKey
from tests.doubles.api_routes import entry_of
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually_async
from tests.doubles.network import (
    API_VERSIONS,
    METADATA,
    SIZE,
    Client,
    Network,
    entry,
    metadata_request,
    running_network,
)

HANDSHAKE, AUTHENTICATE = 17, 36
SCRAM = "SCRAM-SHA-256"
PASSWORDS = {"anna": "s3cret", "bob": "pass"}
CREDENTIAL = scram_credentials.from_password(SCRAM, "s3cret")
ANNA = b"\0anna\0s3cret"


def passwords() -> dict[str, str]:
    return PASSWORDS


class TokenExchange(PlainExchange):
    """The client claims the id of a token; its owner is the principal."""

    def __init__(self, token_id: str) -> None:
        super().__init__(passwords)
        self._token_id = token_id

    def step(self, token: bytes) -> bytes:
        response = super().step(token)
        self.is_token, self.claimed_name = True, self._token_id
        return response


class WaitingExchange(PlainExchange):
    """The first step needs something that is fetched; `arrived` has what is called then."""

    def __init__(self, arrived: list[Callable[[], None]]) -> None:
        super().__init__(passwords)
        self._arrived = arrived

    def step(self, token: bytes) -> bytes:
        if not self._arrived:
            raise AuthenticationWaits(self._arrived.append)
        return super().step(token)


class Scene:
    """A network with one SASL listener; sessions live for `lifetime_ms`."""

    def __init__(self) -> None:
        self.lifetime_ms = 0
        self.delay_ms = 0
        self.now_ms = 1_000_000
        self.expires_at_ms: int | None = None
        self.timer = Timer()
        self.statistics = NetworkStatistics()
        self.principals: list[str] = []
        self.monotonic_seconds = 100.0
        self.versions_error = 0
        self.arrived: list[Callable[[], None]] | None = None  # for a WaitingExchange
        self.token_id = ""  # of the delegation token with which clients log in

    def exchange(self, mechanism: str) -> Exchange:
        if mechanism == SCRAM:
            return ScramExchange(
                SCRAM, lambda name, user: CREDENTIAL if user in PASSWORDS else None
            )
        if self.arrived is not None:
            return WaitingExchange(self.arrived)
        exchange = TokenExchange(self.token_id) if self.token_id else PlainExchange(passwords)
        exchange.expires_at_ms = self.expires_at_ms
        return exchange

    def new_session(self, connection: Any, decoder: Any) -> SaslSession:
        listener = SaslListener(
            mechanisms=["PLAIN", SCRAM],
            new_exchange=self.exchange,
            max_reauth_ms=lambda mechanism: self.lifetime_ms,
            failure_delay_ms=self.delay_ms,
            timer=self.timer,
            now_ms=lambda: self.now_ms,
            statistics=self.statistics,
            log=SecurityLog(None),
        )
        return SaslSession(connection, decoder, listener)

    def versions(self, _: RequestContext, __: Message) -> Message:
        return ApiVersionsResponse(self.versions_error)

    def metadata(self, context: RequestContext, _: Message) -> Message:
        self.principals.append(str(context.principal))
        return MetadataResponse(topics=[MetadataResponseTopic(name=str(context.principal))])


@asynccontextmanager
async def scene(
    authentication_timeout_ms: int = 30_000, **tls: Any
) -> AsyncIterator[tuple[Scene, Network]]:
    made = Scene()
    lines = [
        entry(API_VERSIONS, "ApiVersions", made.versions, before_authentication=True),
        entry(METADATA, "Metadata", made.metadata),
        # Served after the authentication.
        *(
            entry_of(key)
            for key in (ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)
        ),
        entry(HANDSHAKE, "SaslHandshake", sasl.handshake, before_authentication=True),
        entry(AUTHENTICATE, "SaslAuthenticate", sasl.authenticate, before_authentication=True),
    ]
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(sasl_session, "monotonic", lambda: made.monotonic_seconds)
    async with running_network(
        *lines,
        security_protocol="SASL_SSL" if tls else "SASL_PLAINTEXT",
        new_session=made.new_session,
        first_frame_max_bytes=10_000,
        authentication_timeout_ms=authentication_timeout_ms,
        **tls,
    ) as network:
        try:
            yield made, network
        finally:
            monkeypatch.undo()
            made.timer.close()


async def handshake(client: Client, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await client.ask(SaslHandshakeRequest(mechanism=mechanism), version)


async def authenticate(client: Client, token: bytes, version: int = 1) -> Any:
    return await client.ask(SaslAuthenticateRequest(auth_bytes=token), version)


async def log_in(client: Client, token: bytes = ANNA) -> Any:
    assert (await handshake(client)).error_code == ErrorCode.NONE
    return await authenticate(client, token)


async def who(client: Client) -> str | None:
    response = await client.ask(metadata_request())
    assert isinstance(response, MetadataResponse)
    return response.topics[0].name


async def test_api_versions_handshake_token_and_in() -> None:
    async with scene() as (made, network):
        client = await network.connect()
        response = await client.ask(ApiVersionsRequest(), 0)
        assert isinstance(response, ApiVersionsResponse)
        assert (await handshake(client)).mechanisms == ["PLAIN", SCRAM]
        response = await authenticate(client, ANNA)
        assert (response.error_code, response.auth_bytes, response.session_lifetime_ms) == (
            0,
            b"",
            0,
        )
        assert await who(client) == "User:anna"
        assert made.statistics.authentications == 1
        assert network.channel.in_progress_bytes == 0


async def test_bare_tokens_after_version_0() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        mechanism = ScramMechanism(SCRAM, "anna", "s3cret")
        assert (await handshake(client, SCRAM, 0)).error_code == 0
        client.writer.write(SIZE.pack(len(mechanism.first())) + mechanism.first())
        final = mechanism.step(await client.receive_frame())
        assert final is not None
        client.writer.write(SIZE.pack(len(final)) + final)
        mechanism.step(await client.receive_frame())
        assert mechanism.done
        assert await who(client) == "User:anna"


async def test_scram_in_requests() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        mechanism = ScramMechanism(SCRAM, "anna", "s3cret")
        await handshake(client, SCRAM)
        final = mechanism.step((await authenticate(client, mechanism.first(), 2)).auth_bytes)
        assert final is not None
        mechanism.step((await authenticate(client, final, 2)).auth_bytes)
        assert await who(client) == "User:anna"


async def test_requests_sent_ahead_wait_for_the_authentication() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.send(SaslAuthenticateRequest(auth_bytes=ANNA), 1)
        client.send(metadata_request())
        await client.receive(HANDSHAKE, 1)
        await client.receive(AUTHENTICATE, 1)
        response = (await client.receive())[1]
        assert isinstance(response, MetadataResponse)
        assert response.topics[0].name == "User:anna"


async def test_a_step_that_waits_is_taken_again() -> None:
    async with scene() as (made, network):
        made.arrived = []
        client = await network.connect()
        await handshake(client)
        client.send(SaslAuthenticateRequest(auth_bytes=ANNA), 1)
        client.send(metadata_request())
        await eventually_async(lambda: bool(made.arrived))
        assert made.statistics.authentications == 0
        made.arrived[0]()
        _, response = await client.receive(AUTHENTICATE, 1)
        assert isinstance(response, SaslAuthenticateResponse)
        assert response.error_code == 0
        await client.receive()
        assert made.principals == ["User:anna"]


async def test_a_connection_that_ends_while_a_step_waits() -> None:
    """Nothing is read meanwhile, so the end is that of the time for a login."""
    async with scene(authentication_timeout_ms=100) as (made, network):
        made.arrived = []
        client = await network.connect()
        await handshake(client)
        client.send(SaslAuthenticateRequest(auth_bytes=ANNA), 1)
        await eventually_async(lambda: bool(made.arrived))
        client.writer.close()
        await eventually_async(lambda: network.statistics.connections_closed == 1)
        made.arrived[0]()
        assert made.statistics.authentications == 0


async def test_a_wrong_password_costs_time_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as (made, network):
        made.delay_ms = 20
        client = await network.connect()
        await handshake(client)
        response = await authenticate(client, b"\0anna\0hunter2")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == "Authentication failed: Invalid username or password"
        assert await client.is_closed()
        assert made.statistics.failed_authentications == 1
        (line,) = [record.getMessage() for record in caplog.records]
        assert "wrong password for user 'anna'" in line
        assert "plain.sasl.jaas.config" in line
        assert "hunter2" not in caplog.text
        assert "s3cret" not in caplog.text


async def test_scram_refusals_are_the_same_for_all_reasons() -> None:
    async with scene() as (_, network):
        messages = set()
        for user, password in (("anna", "wrong"), ("absent", "s3cret")):
            client = await network.connect()
            mechanism = ScramMechanism(SCRAM, user, password)
            await handshake(client, SCRAM)
            response = await authenticate(client, mechanism.first())
            if not response.error_code:
                final = mechanism.step(response.auth_bytes)
                assert final is not None
                response = await authenticate(client, final)
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            messages.add(response.error_message)
        assert messages == {
            "Authentication failed during authentication due to invalid credentials with SASL "
            "mechanism SCRAM-SHA-256"
        }


async def test_a_mechanism_that_is_not_enabled() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        response = await handshake(client, "GSSAPI", 0)
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["PLAIN", SCRAM]
        assert await client.is_closed()


async def test_requests_in_place_of_a_handshake(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as (made, network):
        client = await network.connect()
        client.send(metadata_request())
        assert await client.is_closed()
        assert "sent a Metadata request instead of authenticating" in caplog.text
        assert "security.protocol to SASL_PLAINTEXT" in caplog.text
        client = await network.connect()
        client.send(SaslAuthenticateRequest(auth_bytes=ANNA), 1)
        assert await client.is_closed()
        client = await network.connect()
        await client.ask(ApiVersionsRequest(), 0)
        client.send(ApiVersionsRequest(), 0)
        assert await client.is_closed()
        assert made.principals == []


async def test_requests_in_the_middle_get_an_error() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await handshake(client)
        client.send(metadata_request("t"))
        response = (await client.receive())[1]
        assert isinstance(response, MetadataResponse)
        assert response.topics[0].error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()


async def test_requests_with_many_elements_before_the_authentication_are_not_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They would hold the event loop, and their sender is unknown."""
    async with scene() as (_, network):
        client = await network.connect()
        await handshake(client)
        client.send(metadata_request(*["t"] * 2_500))
        assert await client.is_closed()
        client = await network.connect()
        tags = dict.fromkeys(range(1_000, 3_000), b"")
        client.send(ApiVersionsRequest(unknown_tagged_fields=tags), 3)
        assert await client.is_closed()
        assert caplog.text.count("elements, and its sender is not authenticated") == 2


async def test_unauthenticated_clients_get_no_big_buffers() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        client.writer.write(SIZE.pack(10_001))
        assert await client.is_closed()
        client = await network.connect()
        await log_in(client)
        client.send(metadata_request("x" * 20_000))
        assert (await client.receive())[0]


async def test_the_handlers_after_authentication() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await log_in(client)
        response = await handshake(client)
        assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        response = await authenticate(client, ANNA)
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert response.error_message == (
            "SaslAuthenticate request received after successful authentication"
        )
        assert await who(client) == "User:anna"


async def test_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with scene(tls_context=certificates.server_context()) as (_, network):
        client = await network.connect(tls=certificates.client_context())
        await log_in(client)
        assert await who(client) == "User:anna"
        client = await network.connect(tls=certificates.client_context())
        response = await log_in(client, b"\0anna\0wrong")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


# KIP-368


async def test_sessions_that_end_can_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_REAUTHENTICATION_INTERVAL_MS", 3_600_000)
    async with scene() as (made, network):
        made.lifetime_ms = 3_600_000
        client = await network.connect()
        assert (await log_in(client)).session_lifetime_ms == 3_600_000
        assert (await log_in(client)).session_lifetime_ms == 3_600_000
        assert await who(client) == "User:anna"
        # Not more often than once an hour, here.
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await who(client) == "User:anna"


async def test_logins_and_renewals_are_in_the_security_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_REAUTHENTICATION_INTERVAL_MS", 0)
    caplog.set_level(logging.INFO, "ottla.audit")
    async with scene() as (made, network):
        made.lifetime_ms = 3_600_000
        client = await network.connect()
        await log_in(client)
        await log_in(client)
        assert (await log_in(client, b"\0bob\0pass")).error_code
    lines = [each for each in caplog.records if each.name == "ottla.audit"]
    assert [(vars(each)["audit"], vars(each)["result"]) for each in lines] == [
        ("login", "success"),
        ("re-authentication", "success"),
        ("re-authentication", "failure"),
    ]
    assert [vars(each)["principal"] for each in lines] == ["User:anna", "User:anna", "User:bob"]


async def test_the_credential_may_end_before_the_session() -> None:
    async with scene() as (made, network):
        made.expires_at_ms = made.now_ms + 50_000
        client = await network.connect()
        assert (await log_in(client)).session_lifetime_ms == 50_000
        made.lifetime_ms = 20_000
        assert (await log_in(client)).session_lifetime_ms == 20_000


async def expired(made: Scene, network: Network) -> Client:
    made.expires_at_ms = made.now_ms
    client = await network.connect()
    assert (await log_in(client)).session_lifetime_ms == 0
    made.expires_at_ms = made.now_ms + 50_000
    return client


async def test_after_the_end_the_next_request_ends_the_connection() -> None:
    async with scene() as (made, network):
        client = await expired(made, network)
        client.send(metadata_request())
        assert await client.is_closed()
        assert made.statistics.expired_sessions == 1
        assert made.principals == []


async def test_a_timer_ends_the_session() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 1
        client = await network.connect()
        await log_in(client)
        made.lifetime_ms = 50_000
        (connection,) = network.server.connections
        await network.until(lambda: connection.token_handler is not None)
        assert (await log_in(client)).session_lifetime_ms == 50_000
        assert await who(client) == "User:anna"


async def test_the_principal_must_stay_the_same() -> None:
    async with scene() as (made, network):
        client = await expired(made, network)
        response = await log_in(client, b"\0bob\0pass")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == (
            "Cannot change principals during re-authentication from User.anna: User.bob"
        )
        assert await client.is_closed()


async def test_the_mechanism_must_stay_the_same() -> None:
    async with scene() as (made, network):
        client = await expired(made, network)
        assert (await handshake(client, SCRAM)).error_code == ErrorCode.NONE
        client.send(SaslAuthenticateRequest(auth_bytes=b"n,,n=anna,r=x"), 1)
        assert await client.is_closed()


async def test_a_renewal_by_an_unknown_mechanism() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 3_600_000
        client = await network.connect()
        await log_in(client)
        client.send(SaslHandshakeRequest(mechanism="OTHER"), 1)
        assert await client.is_closed()
        await network.until(lambda: network.channel.in_progress_bytes == 0)


async def test_a_failed_renewal_says_so() -> None:
    async with scene() as (made, network):
        client = await expired(made, network)
        response = await log_in(client, b"\0anna\0wrong")
        assert isinstance(response, SaslAuthenticateResponse)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


# Whatever an unauthenticated client sends.


def frames(rng: random.Random) -> bytes:
    """Some frames of an unauthenticated client: good ones, damaged ones, noise."""

    def framed(body: bytes) -> bytes:
        return SIZE.pack(len(body)) + body

    def header(key: int, version: int) -> bytes:
        return struct.pack(">hhih", key, version, rng.getrandbits(31), -1)

    mechanism = rng.choice([b"PLAIN", SCRAM.encode(), b"X"])
    token = rng.choice([ANNA[:-1], b"n,,n=anna,r=abc", rng.randbytes(20)])
    pieces: list[Callable[[], bytes]] = [
        lambda: framed(header(18, rng.randrange(-1, 6)) + rng.randbytes(rng.randrange(6))),
        lambda: framed(
            header(17, rng.randrange(3)) + struct.pack(">h", len(mechanism)) + mechanism
        ),
        lambda: framed(header(36, rng.randrange(4)) + struct.pack(">i", len(token)) + token),
        lambda: framed(header(rng.randrange(70), rng.randrange(3)) + rng.randbytes(30)),
        lambda: framed(token),
        lambda: framed(rng.randbytes(rng.randrange(60))),
    ]
    data = bytearray(b"".join(rng.choice(pieces)() for _ in range(rng.randrange(1, 7))))
    if rng.random() < 0.3:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


async def test_no_unauthenticated_client_gets_in_or_leaves_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene() as (made, network):
        for seed in range(300):
            rng = random.Random(seed)
            client = await network.connect()
            client.writer.write(frames(rng))
            client.writer.write_eof()
            while await client.reader.read(1 << 16):
                pass
            await client.close()
            network.clients.remove(client)
        await network.until(lambda: not network.server.connections)
        assert network.channel.in_progress_bytes == 0
        assert made.principals == []
        assert made.statistics.authentications == 0
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
