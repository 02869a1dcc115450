"""Every request of a client that is not authenticated is refused cheaply: counted are function
calls, elements that are decoded, and bytes, not seconds."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ottla.broker.requests import bulk_requests
from ottla.broker.requests.request_decoder import RequestDecoder
from ottla.broker.requests.request_parts import FETCH
from ottla.broker.testing.embedded import Broker
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.registry import API, ApiKey
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import sasl_listener
from tests.hostile.malicious_requests import (
    Shape,
    Writer,
    array_paths,
    header,
    request_layout,
    varint,
)
from tests.hostile.raw_client import SIZE, RawClient
from tests.hostile.turns import TurnMeter, measured_broker

ELEMENTS = 1000
# A connection, its refusal and a line in the log, for each: some tenths of a millisecond. The
# elements of one request would take many times as many.
MOST_CALLS = 1_500
MOST_RESPONSE_BYTES = 2_000
# Connections, which all wait for the delay of a refusal together.
AT_ONCE = 100
HANDSHAKE = encode_request(1, None, SaslHandshakeRequest("PLAIN"), 1)[4:]
TLS_LISTENER = "TLS"


class Measured(NamedTuple):
    broker: Broker
    meter: TurnMeter
    sasl_port: int
    tls_port: int
    certificates: Certificates
    #: Elements that a request had when a step of its decoding began.
    decoded: list[int]
    #: Frames that the request decoder got.
    frames: list[int]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    settings = sasl_listener() | {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,TLS:SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": certificates.server_path,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": certificates.authority_path,
        "ssl_client_auth": "required",
        "connection_failed_authentication_delay_ms": "0",
    }
    decoded: list[int] = []
    frames: list[int] = []
    step, decode = bulk_requests.Decoding.step, RequestDecoder.decode

    def counted_step(decoding: bulk_requests.Decoding) -> bool:
        decoded.append(decoding.elements)
        return step(decoding)

    def counted_decode(decoder: RequestDecoder, frame: bytearray, connection: object) -> object:
        frames.append(len(frame))
        return decode(decoder, frame, connection)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(bulk_requests.Decoding, "step", counted_step)
        monkeypatch.setattr(RequestDecoder, "decode", counted_decode)
        with measured_broker(monkeypatch, **settings) as (broker, meter):
            listeners = broker.server.parts.network_server.listeners
            ports = [listeners[name].port for name in ("CLIENTS", TLS_LISTENER)]
            yield Measured(broker, meter, ports[0], ports[1], certificates, decoded, frames)


def chosen(key: int, version: int) -> Iterator[Shape]:
    """A request with very many elements in its last array, and one without a body."""
    layout = request_layout(API[key], version)
    for path in [*array_paths(layout)][-1:]:
        body = Writer(path, ELEMENTS, distinct=True).struct(layout, ())
        yield Shape(API[key].name, version, ".".join(path), header(API[key], version) + body)
    yield Shape(API[key].name, version, "header only", header(API[key], version))


def refused(measured: Measured, found: list[Shape], *before: bytes) -> list[str]:
    """What is wrong with the refusals of requests that are sent at the same time."""
    measured.meter.reset()
    measured.decoded.clear()
    clients = [RawClient(measured.sasl_port) for _ in found]
    try:
        for frame in before:
            for client in clients:
                client.send(frame)
            assert all(client.receive() > 0 for client in clients)
        for client, shape in zip(clients, found, strict=True):
            client.send(shape.frame)
        lengths = [client.receive() for client in clients]
    finally:
        for client in clients:
            client.close()
    numbers = {
        "calls for each": (measured.meter.all_calls // len(found), MOST_CALLS),
        "elements": (max(measured.decoded, default=0), FETCH.small),
        "bytes of a response": (max(lengths), MOST_RESPONSE_BYTES),
    }
    return [
        f"{found[0].api}: {number} {name}"
        for name, (number, most) in numbers.items()
        if number > most
    ]


@pytest.mark.parametrize("before", [(), (HANDSHAKE,)], ids=["first", "after the handshake"])
def test_every_version_of_every_api_is_refused_cheaply(
    measured: Measured, before: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[str] = []
    for api in API.values():
        versions = range(api.min_version, api.max_version + 1)
        found = [shape for version in versions for shape in chosen(api.key, version)]
        for start in range(0, len(found), AT_ONCE):
            wrong += refused(measured, found[start : start + AT_ONCE], *before)
    assert not wrong
    assert not [record for record in caplog.records if record.exc_info]
    channel = measured.broker.server.parts.request_channel
    eventually(lambda: channel.in_progress_bytes == 0, "the memory of a request is not released")


@pytest.mark.parametrize("before", [(), (HANDSHAKE,)], ids=["first", "after the handshake"])
@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA])
def test_the_longest_frame_is_not_decoded(
    measured: Measured, before: tuple[bytes, ...], key: int, caplog: pytest.LogCaptureFixture
) -> None:
    api = API[key]
    version = api.max_version if key == ApiKey.API_VERSIONS else 0
    count = 240_000
    body = count.to_bytes(4) + bytes(2 * count)
    if key == ApiKey.API_VERSIONS:
        body = (
            b"\1\1"
            + varint(count)
            + b"".join(varint(tag) + b"\0" for tag in range(100, 100 + count // 2))
        )
    shape = Shape(api.name, version, "longest", header(api, version) + body)
    assert len(shape.frame) < 524_288
    assert not refused(measured, [shape], *before)
    assert not [record for record in caplog.records if record.exc_info]


def test_without_a_certificate_no_frame_is_decoded(measured: Measured) -> None:
    measured.frames.clear()
    for api in API.values():
        frame = next(chosen(api.key, api.max_version)).frame
        measured.meter.reset()
        assert closed_by_tls(measured, frame)
        assert measured.meter.all_calls < MOST_CALLS, api.name
    assert not measured.frames
    server = measured.broker.server.parts.network_server
    eventually(lambda: not server.listeners[TLS_LISTENER].connections, "connections stay open")


def closed_by_tls(measured: Measured, frame: bytes) -> bool:
    """Whether the broker closes a connection without a certificate, and responds nothing."""
    client = RawClient(measured.tls_port)
    context = measured.certificates.client_context()
    with client.sock:
        try:
            # With TLS 1.3 the handshake is over for the client before the broker has seen that
            # there is no certificate.
            with context.wrap_socket(client.sock, server_hostname="127.0.0.1") as secured:
                secured.sendall(SIZE.pack(len(frame)) + frame)
                return secured.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return True
