"""The client of a schema registry: what it requests, keeps and reports."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ottla.decode import registry as module
from pyspark_ottla.decode.registry import Registry, Schema, SchemaNotFoundError, registry_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.registry_options import RegistryOptions
from tests.doubles.certificates import Certificates
from tests.doubles.schema_registry import SchemaRegistry, serving

SECRET = "hunter2"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(module, "PAUSE_FIRST_SECONDS", 0.001)
    with serving() as running:
        yield running


def client(server: SchemaRegistry, **changes: Any) -> Registry:
    given = {"urls": (server.url,), "timeout_ms": 5000} | changes
    return Registry(RegistryOptions(**given))


def error_text(registry: Registry) -> str:
    with pytest.raises(ConnectorError) as raised:
        registry.by_id(1, "avro")
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_schemas_by_id_are_fetched_once(server: SchemaRegistry) -> None:
    schema_id = server.register("orders-value", '"string"')
    registry = client(server)
    expected = Schema("avro", '"string"', (), schema_id)
    assert [registry.by_id(schema_id, "avro") for _ in range(3)] == [expected] * 3
    assert server.requests == ["/schemas/ids/1"]


def test_schemas_by_subject_are_the_latest_or_of_a_version(server: SchemaRegistry) -> None:
    server.register("a/b value", '"string"')
    server.register("a/b value", '"long"')
    registry = client(server)
    assert registry.by_subject("a/b value", None, "avro").text == '"long"'
    assert registry.by_subject("a/b value", 1, "avro").schema_id == 1
    assert server.requests[0] == "/subjects/a%2Fb%20value/versions/latest"


def test_references_come_first_needed_first(server: SchemaRegistry) -> None:
    def reference(name: str) -> dict[str, Any]:
        return {"name": name, "subject": name, "version": 1}

    server.register("c", "C")
    server.register("b", "B", references=[reference("c")])
    server.register("a", "A", references=[reference("b"), reference("c")])
    found = client(server).by_subject("a", None, "avro")
    assert found.references == (("c", "C"), ("b", "B"))
    server.register("loop", "L", references=[reference("loop")])
    assert client(server).by_subject("loop", None, "avro").references == (("loop", "L"),)


def test_protobuf_is_requested_as_descriptors(server: SchemaRegistry) -> None:
    server.register("p", "message", "PROTOBUF", serialized=b"descriptor")
    assert client(server).by_id(1, "protobuf").text == "ZGVzY3JpcHRvcg=="
    assert server.requests == ["/schemas/ids/1?format=serialized"]


def test_protobuf_as_text_where_there_are_no_descriptors(server: SchemaRegistry) -> None:
    """Karapace fails for the descriptors of schemas with references; others return text."""
    server.register("imported", "text;", "PROTOBUF", serialized=b"descriptor")
    imported = [{"name": "i.proto", "subject": "imported", "version": 1}]
    server.register("p", "message P {}", "PROTOBUF", imported)
    expected = Schema("protobuf", "message P {}", (("i.proto", "text;"),), 2)
    assert client(server).by_id(2, "protobuf") == expected  # one of two is text
    server.failures = [500]
    server.requests.clear()
    assert client(server).by_subject("p", None, "protobuf") == expected
    assert [path.partition("?")[2] for path in server.requests] == ["format=serialized", "", ""]


@pytest.mark.parametrize(("subject", "version"), [("none", None), ("known", 9)])
def test_what_is_not_there(subject: str, version: int | None, server: SchemaRegistry) -> None:
    server.register("known", '"string"')
    registry = client(server)
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(99, "avro")
    with pytest.raises(SchemaNotFoundError):
        registry.by_subject(subject, version, "avro")


def test_credentials(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    server.register("a", '"string"')
    server.credentials = f"spark:{SECRET}"
    monkeypatch.setenv("REGISTRY_USER", server.credentials)
    assert client(server, user_info="${env:REGISTRY_USER}").by_id(1, "avro").text == '"string"'
    assert "rejects the credentials (401)" in error_text(client(server, user_info="spark:x"))
    assert "[AUTHENTICATION_FAILED] The schema registry" in error_text(client(server))
    server.credentials = f"Bearer {SECRET}"
    assert client(server, token=SECRET).by_id(1, "avro").text == '"string"'
    assert SECRET not in repr(RegistryOptions(("u",), user_info=f"a:{SECRET}", token=SECRET))


def test_failures_that_pass_are_retried(server: SchemaRegistry) -> None:
    server.register("a", '"string"')
    server.failures = [500, 503, 429]
    assert client(server).by_id(1, "avro").text == '"string"'
    assert len(server.requests) == 4


def test_the_next_address_is_used(server: SchemaRegistry) -> None:
    server.register("a", '"string"')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urls = (f"http://127.0.0.1:{port}", server.url)
    assert client(server, urls=urls).by_id(1, "avro").text == '"string"'
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = (f"http://127.0.0.1:{silent.getsockname()[1]}", server.url)
        assert client(server, urls=urls, timeout_ms=2000).by_id(1, "avro").text == '"string"'


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (b"<html>", "its response is not that of a schema registry"),
        (b"[]", "its response is not that of a schema registry"),
        (b"{}", "its response is not that of a schema registry"),
        (b" " * (module.RESPONSE_BYTES_MAX + 1), "its response is not that of a schema registry"),
    ],
)
def test_other_servers(response: bytes, text: str, server: SchemaRegistry) -> None:
    server.raw_response = response
    assert text in error_text(client(server))


def test_a_404_of_another_server_is_no_unknown_schema(server: SchemaRegistry) -> None:
    server.failures = [404]
    assert "cannot be used: it returned 404" in error_text(client(server))


def test_the_deadline_bounds_every_retry(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.failures = [503] * 10_000
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    with monkeypatch.context() as patched:
        patched.setattr(module, "time", clock)
        text = error_text(client(server, timeout_ms=30_000))
    assert "[REGISTRY_UNAVAILABLE]" in text
    assert "it returned 503" in text
    assert "schema.registry.timeout.ms" in text
    assert 28 < sum(pauses) <= 30
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in error_text(client(server, urls=(address,), timeout_ms=100))


def test_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with serving(certificates.server_context(ask_for_certificate=True)) as server:
        server.register("a", '"string"')
        trusted = client(
            server,
            ca_location=str(certificates.authority_path),
            certificate_location=str(certificates.client_path),
        )
        assert trusted.by_id(1, "avro").text == '"string"'
        assert "is not trusted" in error_text(client(server))
    with pytest.raises(
        ConnectorError, match=r"schema\.registry\.ssl\.\* cannot be used \(.*none\.pem\)"
    ):
        Registry(RegistryOptions(("https://h",), ca_location=str(tmp_path / "none.pem")))


def test_a_process_has_one_client_for_a_registry(server: SchemaRegistry) -> None:
    options = RegistryOptions((server.url,))
    assert registry_of(options) is registry_of(RegistryOptions((server.url,)))


def test_the_cache_is_bounded(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_MAX", 2)
    for number in range(3):
        server.register("a", json.dumps({"type": "string", "n": number}))
    registry = client(server)
    for schema_id in (1, 2, 3, 3, 1):
        registry.by_id(schema_id, "avro")
    assert len(server.requests) == 4
