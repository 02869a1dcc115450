"""Both sides of GSSAPI over scripted contexts; tests/compat has a real KDC."""

from __future__ import annotations

import threading

import pytest

from ottla.broker.security.sasl.exchanges import AuthenticationRefused
from ottla.broker.security.sasl.gssapi_exchange import GssapiExchange
from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import GssapiMechanism, SecurityContext, mechanism_factory
from ottla.protocol.client.security import Security
from tests.doubles.scripted_gss import ScriptedContext

PRINCIPAL = "anna@EXAMPLE.COM"


def short_name(principal: str) -> str:
    name, _, realm = principal.partition("@")
    if realm != "EXAMPLE.COM":
        raise ValueError(f"no rule for {realm}")
    return name


def server(*, mutual: bool = True) -> GssapiExchange:
    return GssapiExchange(lambda: ScriptedContext(is_client=False, mutual=mutual), short_name)


@pytest.mark.parametrize("mutual", [True, False])
def test_both_sides(mutual: bool) -> None:
    hosts: list[str] = []

    def new_context(host: str) -> SecurityContext:
        hosts.append(host)
        return ScriptedContext(PRINCIPAL, is_client=True, mutual=mutual)

    client = GssapiMechanism(new_context, "broker-1")
    exchange = server(mutual=mutual)
    assert client.blocks
    client.prepare()
    token: bytes | None = client.first()
    while token is not None:
        token = client.step(exchange.step(token))
    assert client.done
    assert exchange.is_complete
    assert exchange.name == "anna"
    assert exchange.expires_at_ms is None
    assert hosts == ["broker-1"]


def test_the_mechanism_of_a_connection() -> None:
    security = Security(
        "SASL_SSL",
        mechanism="GSSAPI",
        new_context=lambda host: ScriptedContext(PRINCIPAL, is_client=True),
    )
    factory = mechanism_factory(security, "broker-1")
    assert factory is not None
    assert factory().first() == b"request:" + PRINCIPAL.encode()
    with pytest.raises(ValueError, match="GSSAPI is not available"):
        Security("SASL_SSL", mechanism="GSSAPI")


async def test_a_ticket_is_taken_in_another_thread_before_the_connection_is_opened() -> None:
    threads: list[str] = []

    def new_context(host: str) -> SecurityContext:
        threads.append(threading.current_thread().name)
        raise AuthenticationError(f"no ticket for {host}")

    security = Security("SASL_PLAINTEXT", mechanism="GSSAPI", new_context=new_context)
    connection = AsyncConnection("127.0.0.1", 1, security=security)
    with pytest.raises(AuthenticationError, match=r"no ticket for 127\.0\.0\.1"):
        await connection.connect()
    assert threads[0].startswith("sasl-prepare")


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([b"nonsense"], "GSSAPI: Invalid token was supplied"),
        ([b"request:anna@EXAMPLE.COM", b"again"], "out of turn"),
        ([b"request:anna@EXAMPLE.COM", b"", b"forged:\x01\x00\x00\x00"], "Integrity Check"),
        ([b"request:anna@EXAMPLE.COM", b"", b"wrapped:\x04\x00\x00\x00"], "security layer"),
        ([b"request:anna@EXAMPLE.COM", b"", b"wrapped:\x01"], "security layer"),
        ([b"request:anna@OTHER", b"", b"wrapped:\x01\x00\x00\x00"], "no rule for OTHER"),
        ([b"request:@EXAMPLE.COM", b"", b"wrapped:\x01\x00\x00\x00"], "no user is made of"),
    ],
)
def test_what_is_refused(tokens: list[bytes], words: str) -> None:
    exchange = server()
    for token in tokens[:-1]:
        exchange.step(token)
    with pytest.raises(AuthenticationRefused, match=words):
        exchange.step(tokens[-1])
    assert not exchange.is_complete


@pytest.mark.parametrize("authorization_id", [b"", b"admin@EXAMPLE.COM", b"kafka@localhost"])
def test_the_ticket_decides_not_the_authorization_id(authorization_id: bytes) -> None:
    exchange = server()
    assert exchange.step(b"request:anna@EXAMPLE.COM") == b"reply"
    assert exchange.step(b"") == b"wrapped:\x01\x00\x00\x00"
    assert exchange.step(b"wrapped:\x01\x00\x00\x00" + authorization_id) == b""
    assert exchange.name == "anna"


def test_the_client_takes_no_security_layer() -> None:
    client = GssapiMechanism(lambda host: ScriptedContext(PRINCIPAL, is_client=True), "h")
    client.first()
    assert client.step(b"reply") == b""
    with pytest.raises(AuthenticationError, match="requires a security layer"):
        client.step(b"wrapped:\x02\x00\x00\x00")
