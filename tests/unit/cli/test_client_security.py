"""The files of a Java client in --command-config: stores of Java, and what cannot be read."""

from __future__ import annotations

import builtins
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.client_security import client_security
from ottla.cli.health import USAGE_ERROR, Unhealthy
from ottla.cli.healthcheck import request_metadata
from ottla.cli.output import UNREACHABLE, USAGE, Failure
from ottla.cli.session import Session
from ottla.protocol.client.blocking_connection import create_ssl_context
from tests.doubles.command_line import CommandLine
from tests.unit.broker.security.tls.test_contexts import shakes_hands

STORES = Path("tests/unit/broker/config/stores").resolve()


def java_client(kind: str, **others: str) -> dict[str, str]:
    found = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(STORES / f"trust.{kind}"),
        "ssl.truststore.password": "storepass",
        "ssl.keystore.location": str(STORES / f"keys.{kind}"),
        "ssl.keystore.password": "storepass",
        "ssl.key.password": "keypassw" if kind == "jks" else "storepass",
    }
    return found | {name.replace("_", "."): value for name, value in others.items()}


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_stores_of_java(kind: str) -> None:
    with ExitStack() as files:
        context = create_ssl_context(client_security(java_client(kind), files))
    # The server of the handshake has the client's own key, and trusts it.
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=STORES / f"{kind}.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    with ExitStack() as files:
        security = client_security(java_client(kind), files)
        assert security.certificate_file is not None
        server.load_cert_chain(security.certificate_file)
    assert shakes_hands(server, context) == "TLSv1.3"


def test_files_of_pem_come_first() -> None:
    given = java_client("jks", ssl_ca_location="/ca.pem", ssl_certificate_location="/client.pem")
    with ExitStack() as files:
        security = client_security(given, files)
        assert (security.ca_file, security.certificate_file) == ("/ca.pem", "/client.pem")


def test_stores_are_not_read_without_tls() -> None:
    given = {"ssl.truststore.location": "/nothing.jks"}
    with ExitStack() as files:
        assert not client_security(given, files).uses_tls


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"ssl.truststore.location": "/nothing.jks"}, "/nothing.jks cannot be read: No such file"),
        ({"ssl.ca.location": "/nothing.pem"}, r"the TLS files \(/nothing.pem\) cannot be used"),
        (java_client("jks", ssl_truststore_password="wrong"), "the password of the store is wrong"),
    ],
)
def test_a_file_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, properties: dict[str, str], words: str
) -> None:
    path = tmp_path / "admin.properties"
    lines = {"security.protocol": "SSL"} | properties
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    session = Session("127.0.0.1:1", str(path), 1.0, json=False)
    with pytest.raises(Failure, match=words) as failure:
        session.client.close()
    session.close()
    assert failure.value.code == USAGE
    with pytest.raises(Unhealthy, match=words) as unhealthy:
        request_metadata("127.0.0.1:1", 1.0, str(path))
    assert unhealthy.value.code == USAGE_ERROR


@pytest.mark.parametrize(
    ("arguments", "environment", "address"),
    [
        ((), {}, "127.0.0.1:1"),
        (("-b", "127.0.0.1:2"), {}, "127.0.0.1:2"),
        ((), {"OTTLA_BOOTSTRAP": "127.0.0.1:3"}, "127.0.0.1:3"),
    ],
)
def test_the_address_of_the_file_is_used_if_no_other_is_given(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], address: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\n")
    ottla = CommandLine("")
    ottla.environment |= environment
    outcome = ottla("topics", "list", "--command-config", str(path), *arguments)
    assert outcome.code == UNREACHABLE
    assert f"broker {address}:" in outcome.errors
    assert "has no effect" not in outcome.errors
    assert ottla("topics", "list", "--command-config", str(path), "-b", "").code == USAGE


def test_without_the_package_for_pkcs12(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with ExitStack() as files, pytest.raises(Failure) as failure:
        client_security(java_client("pkcs12"), files)
    assert "pip install 'ottla[keystores]'" in str(failure.value)
    assert "ssl.ca.location" in str(failure.value)
