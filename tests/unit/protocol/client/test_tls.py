"""TLS of both clients, with certificates made for the test."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.errors import AuthenticationError, BrokerConnectionError, ClientError
from ottla.protocol.client.security import Security
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.registry import ApiKey
from tests.doubles.async_client import AsyncClient
from tests.doubles.certificates import Certificates
from tests.doubles.scripted_broker import ScriptedBroker, ScriptedServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def ask_blocking(server: ScriptedServer, security: Security | None) -> object:
    with BlockingClient(server.bootstrap, security=security, request_timeout_ms=5000) as client:
        client.send(None, ListGroupsRequest())
        return client.send(None, ListGroupsRequest())


def ask_asyncio(server: ScriptedServer, security: Security | None) -> object:
    async def ask() -> object:
        async with AsyncClient(
            server.bootstrap, security=security, request_timeout_ms=5000
        ) as client:
            await client.send(None, ListGroupsRequest())
            response = await client.send(None, ListGroupsRequest())
        await asyncio.sleep(0)  # lets the transport finish closing
        return response

    return asyncio.run(ask())


ASK = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio])


def serve(context: ssl.SSLContext | None) -> ScriptedServer:
    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse()
    return ScriptedServer(broker, context)


@ASK
def test_trusted_certificate(certificates: Certificates, ask: type) -> None:
    security = Security("SSL", ca_file=str(certificates.authority_path))
    with serve(certificates.server_context()) as server:
        assert ask(server, security) == ListGroupsResponse()
        assert server.connections == 1


@ASK
def test_client_certificate(certificates: Certificates, ask: type) -> None:
    security = Security(
        "SSL",
        ca_file=str(certificates.authority_path),
        certificate_file=str(certificates.client_path),
    )
    with serve(certificates.server_context(ask_for_certificate=True)) as server:
        assert ask(server, security) == ListGroupsResponse()


@ASK
def test_certificate_that_is_not_trusted(certificates: Certificates, ask: type) -> None:
    with (
        serve(certificates.server_context()) as server,
        pytest.raises(AuthenticationError, match=r"not trusted.*ssl\.ca\.location"),
    ):
        ask(server, Security("SSL"))


@ASK
def test_missing_client_certificate(certificates: Certificates, ask: type) -> None:
    security = Security("SSL", ca_file=str(certificates.authority_path))
    with (
        serve(certificates.server_context(ask_for_certificate=True)) as server,
        pytest.raises(BrokerConnectionError),
    ):
        ask(server, security)


@ASK
def test_tls_to_a_port_that_speaks_plaintext(certificates: Certificates, ask: type) -> None:
    security = Security("SSL", ca_file=str(certificates.authority_path))
    with serve(None) as server, pytest.raises(ClientError, match="no TLS with broker"):
        ask(server, security)


@ASK
def test_plaintext_to_a_port_that_speaks_tls(certificates: Certificates, ask: type) -> None:
    with (
        serve(certificates.server_context()) as server,
        pytest.raises(ClientError, match=r"security\.protocol"),
    ):
        ask(server, None)


@ASK
def test_files_that_cannot_be_used(tmp_path: Path, ask: type) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(serve(None))
            stack.enter_context(pytest.raises(AuthenticationError, match=path.name))
            ask(server, Security("SSL", ca_file=str(path)))
