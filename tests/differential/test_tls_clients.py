"""Clients with TLS, as an attacker would try them, beside Apache Kafka: who is let in, and as whom.

The owner of a delegation token shows the name of the client. docs/security.md has the results.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from tests.doubles import odd_subjects
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.odd_subjects import BMP, T61, UTF8, simple, subject, text_value
from tests.doubles.sasl_talk import addresses

pytestmark = [pytest.mark.kafka]

RULES = "RULE:^CN=mapped-([a-z]+),.*$/$1/U,DEFAULT"


class Both(NamedTuple):
    """The address of the SSL listener of Kafka, and ours."""

    kafka: str
    ottla: str
    trusted: Certificates
    others: Certificates


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    trusted = Certificates(tmp_path_factory.mktemp("trusted"))
    others = Certificates(tmp_path_factory.mktemp("others"), "another authority")
    settings: dict[str, object] = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl_client_auth": "requested",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": trusted.server_path,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": trusted.authority_path,
        "ssl_principal_mapping_rules": RULES,
        "delegation_token_secret_key": "a secret",
    }
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **settings) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), **settings) as ottla,
    ):
        yield Both(addresses(kafka)[1], addresses(ottla)[1], trusted, others)


def context(
    trust: Certificates, keys: Path | None = None, newest: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(trust.authority_path))
    made.check_hostname = False
    if keys is not None:
        made.load_cert_chain(keys)
    if newest is not None:
        made.minimum_version = made.maximum_version = newest
        made.set_ciphers("ALL:@SECLEVEL=0")
    return made


class Client:
    """A connection by TLS; `name` is what it sends as SNI."""

    def __init__(self, address: str, made: ssl.SSLContext, name: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), 30)
        try:
            self.socket = made.wrap_socket(plain, server_hostname=name)
        except OSError:
            plain.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Message, version: int) -> Any:
        self.socket.sendall(encode_request(1, "client", request, version))
        (size,) = struct.unpack(">i", self._receive(4))
        return decode_response(self._receive(size), request.API_KEY, version)[1]

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data


def outcome(address: str, made: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """Whose token the client gets, or why it gets none."""
    try:
        with Client(address, made, name) as client:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
            response = client.ask(CreateDelegationTokenRequest(max_lifetime_ms=60_000), 2)
    except OSError:
        return "no connection"
    if response.error_code:
        return f"error {response.error_code}"
    return f"{response.principal_type}:{response.principal_name}"


def same(both: Both, made: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    found = {outcome(address, made, name) for address in (both.kafka, both.ottla)}
    assert len(found) == 1, found
    return found.pop()


SUBJECTS = {
    "serial number": simple(("O", "acme"), ("2.5.4.5", "77"), ("CN", "bob")),
    "mail": simple(("CN", "bob"), (odd_subjects.EMAIL, "bob@example.com")),
    "signs": simple(("O", "x=y"), ("CN", "#1 a+b,c=d ")),
    "several": subject([("2.5.4.3", text_value(UTF8, "a")), ("2.5.4.11", text_value(UTF8, "b"))]),
    "none": subject(),
    "empty value": simple(("O", "acme"), ("CN", "")),
    "other alphabets": simple(("O", "Müller"), ("CN", "日本 \U0001f600")),
    "BMP": simple(("CN", "bmp"), tag=BMP),
    "T61": simple(("CN", "café"), tag=T61),
    "mapped": simple(("O", "acme"), ("CN", "mapped-writer")),
    "mapped by no rule": simple(("O", "acme"), ("CN", "mapped-ü")),
    "control characters": simple(("CN", "a\0b\nc\r")),
}


@pytest.mark.parametrize("which", SUBJECTS)
def test_a_certificate_stands_for_the_same_user(both: Both, which: str) -> None:
    keys = both.trusted.issue_for(SUBJECTS[which], "odd")
    found = same(both, context(both.trusted, keys))
    assert found.startswith("User:"), found


def test_a_client_without_a_certificate_is_anonymous(both: Both) -> None:
    expected = f"error {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}"
    assert same(both, context(both.trusted)) == expected


def test_a_certificate_of_another_authority_is_rejected_although_none_is_required(
    both: Both,
) -> None:
    assert same(both, context(both.trusted, both.others.client_path)) == "no connection"


def test_a_certificate_that_has_expired_is_rejected(both: Both) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    keys = both.trusted.issue("late", not_after=past)
    assert same(both, context(both.trusted, keys)) == "no connection"


@pytest.mark.parametrize("name", ["localhost", "unknown.example", "a.b.c.d.example"])
def test_the_name_that_a_client_asks_for_changes_nothing(both: Both, name: str) -> None:
    made = context(both.trusted, both.trusted.client_path)
    assert same(both, made, name) == "User:CN=client"
    presented = set()
    for address in (both.kafka, both.ottla):
        with Client(address, made, name) as client:
            presented.add(client.socket.getpeercert(True))
    assert len(presented) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (ssl.TLSVersion.TLSv1, "no connection"),
        (ssl.TLSVersion.TLSv1_1, "no connection"),
        (ssl.TLSVersion.TLSv1_2, "User:CN=client"),
        (ssl.TLSVersion.TLSv1_3, "User:CN=client"),
    ],
)
def test_versions_of_tls(both: Both, version: ssl.TLSVersion, expected: str) -> None:
    made = context(both.trusted, both.trusted.client_path, version)
    assert same(both, made) == expected
