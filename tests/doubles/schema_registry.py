"""A stand-in for a schema registry: Confluent's REST interface as far as clients read it.

Every registered text gets an id; the same text in two subjects has one id, as in the original.
Faults are switched on by tests: credentials, responses with an error, silence.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class SchemaRegistry:
    """What is registered, and how to behave; `url` is set while it serves."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.credentials = ""  # user:password, or Bearer token
        self.failures: list[int] = []  # status codes of the next responses
        self.delay_seconds = 0.0
        self.raw_response: bytes | None = None
        self.has_serialized = True
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}

    def register(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        serialized: bytes = b"",
    ) -> int:
        """The id. `serialized` is Protobuf's file descriptor."""
        entry = {"schema": text, "schemaType": kind, "references": references or []}
        known = [{**other, "serialized": None} for other in self._schemas]
        if {**entry, "serialized": None} not in known:
            self._schemas.append({**entry, "serialized": base64.b64encode(serialized).decode()})
            known.append({**entry, "serialized": None})
        schema_id = known.index({**entry, "serialized": None}) + 1
        self._subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def response(self, path: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(path)
        serialized = parse_qs(parts.query).get("format") == ["serialized"] and self.has_serialized
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        if steps[:2] == ["schemas", "ids"]:
            schema_id = int(steps[2])
            if not 1 <= schema_id <= len(self._schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._shown(schema_id, serialized)
        if steps[0] == "subjects" and steps[2] == "versions":
            ids = self._subjects.get(steps[1])
            if ids is None:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            version = len(ids) if steps[3] == "latest" else int(steps[3])
            if not 1 <= version <= len(ids):
                return 404, {"error_code": 40402, "message": "Version not found"}
            schema_id = ids[version - 1]
            names = {"id": schema_id, "subject": steps[1], "version": version}
            return 200, names | self._shown(schema_id, serialized)
        return 404, {}

    def _shown(self, schema_id: int, serialized: bool) -> dict[str, Any]:
        entry = dict(self._schemas[schema_id - 1])
        descriptor = entry.pop("serialized")
        if serialized and descriptor:
            entry["schema"] = descriptor
        if entry["schemaType"] == "AVRO":
            del entry["schemaType"]  # as the original leaves it out
        return {name: value for name, value in entry.items() if value}

    def is_welcome(self, authorization: str) -> bool:
        if not self.credentials:
            return True
        if self.credentials.startswith("Bearer "):
            return authorization == self.credentials
        encoded = base64.b64encode(self.credentials.encode()).decode()
        return authorization == f"Basic {encoded}"


def framed(schema_id: int, content: bytes, indexes: bytes = b"") -> bytes:
    """Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + content


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[SchemaRegistry]:
    """A registry on a port of its own, with TLS if there is a context."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            time.sleep(registry.delay_seconds)
            if not registry.is_welcome(self.headers.get("Authorization", "")):
                self._send(401, b'{"error_code":401,"message":"Unauthorized"}')
            elif registry.failures:
                self._send(registry.failures.pop(0), b"no")
            elif registry.raw_response is not None:
                self._send(200, registry.raw_response)
            else:
                status, found = registry.response(self.path)
                self._send(status, json.dumps(found).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    # ... a client that gave up, or did not trust the certificate
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    scheme = "http" if context is None else "https"
    registry.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
