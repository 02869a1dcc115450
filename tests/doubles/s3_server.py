"""An S3 server, and a proxy before it that spoils requests. The server is moto's, or SeaweedFS with
OTTLA_TEST_STORE=seaweedfs: `make compat-stores`. `object_stores` has other stores.

with s3_server() as s3:
    s3.faults = [Fault.UNAVAILABLE, None, Fault.LOST]  # of the next requests; then there are none
    settings = s3.settings(**{"chunk.size": "1024"})
"""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, TypeVar
from urllib.parse import unquote

from tests.doubles.seaweedfs import ACCESS_KEY, SECRET_KEY, seaweedfs

#: The variable with the store of the tests, and what it is without the variable.
STORE_VARIABLE, MOTO = "OTTLA_TEST_STORE", "moto"
BUCKET = "bucket"
# Far from what a request needs on a busy machine.
ATTEMPT_TIMEOUT_MS = 10_000
PART_BYTES = 5 * 1024 * 1024


class Fault(Enum):
    UNAVAILABLE = "503, the request is not carried out"
    LOST = "the request is carried out, and the connection is closed without a response"
    TRUNCATED = "the connection is closed in the middle of the body"
    CORRUPT = "a byte of the body is another one"
    DENIED = "403, the signature is wrong"
    STALLED = "no response comes"


class S3Server:
    """A server behind the proxy; `port` is that of the proxy."""

    #: The setting with the name of the bucket.
    bucket_setting = "storage.s3.bucket.name"
    #: Settings for a test in which each request fails.
    short_timeouts: ClassVar[Mapping[str, str]] = {
        "storage.s3.api.call.attempt.timeout": "100",
        "storage.s3.api.call.timeout": "300",
    }

    #: What the server gets instead of the headers of a request.
    replaced_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.faults: list[Fault | None] = []
        self.requests: list[str] = []
        #: Begins of the Authorization headers of the requests, with the access key.
        self.credentials: set[str] = set()
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self.port = 0

    def next_fault(self, line: str, credentials: str) -> Fault | None:
        with self._lock:
            self.requests.append(line)
            self.credentials.add(credentials.partition(",")[0])
            return self.faults.pop(0) if self.faults else None

    def settings(self, **more: str) -> dict[str, str]:
        """Those of the remote storage."""
        return {
            "storage.backend.class": "s3",
            "chunk.size": "1048576",
            "storage.s3.bucket.name": BUCKET,
            "storage.s3.region": "us-east-1",
            "storage.s3.endpoint.url": f"http://127.0.0.1:{self.port}",
            "storage.s3.multipart.upload.part.size": str(PART_BYTES),
            "storage.s3.api.call.attempt.timeout": str(ATTEMPT_TIMEOUT_MS),
            "storage.aws.access.key.id": ACCESS_KEY,
            "storage.aws.secret.access.key": SECRET_KEY,
            **more,
        }

    def create_bucket(self) -> None:
        """Of the server itself, which is empty."""
        self.send("PUT", f"/{BUCKET}", headers={"x-amz-acl": "private"})

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """A request past the proxy, which must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
            assert response.status in (200, 201), content
        finally:
            connection.close()


@contextmanager
def moto() -> Iterator[int]:
    """Its port. Needs moto, flask and flask-cors."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        connection.close()
        yield port
    finally:
        server.stop()


def _server() -> AbstractContextManager[int]:
    name = os.environ.get(STORE_VARIABLE, MOTO)
    return {MOTO: moto, "seaweedfs": seaweedfs}[name]()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """With an empty bucket."""
    with _server() as port, proxied(S3Server(port)) as server:
        yield server


Server = TypeVar("Server", bound=S3Server)


@contextmanager
def proxied(server: Server) -> Iterator[Server]:
    """The proxy of a server, which gets its bucket."""
    server.create_bucket()
    proxy = _Proxy(("127.0.0.1", 0), _Handler)
    proxy.s3 = server
    server.port = proxy.server_address[1]
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True  # a client may keep its connection open
    s3: S3Server

    def handle_error(self, request: object, client_address: object) -> None:
        """The client closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _forward(self) -> None:
        s3 = self.server.s3
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        # A deletion has its keys in the body.
        keys = body.decode() if self.path.endswith(("?delete", "comp=batch")) else ""
        line = f"{self.command} {unquote(self.path)} {unquote(keys)}".strip()
        fault = s3.next_fault(line, self.headers.get("authorization", ""))
        if fault is Fault.UNAVAILABLE:
            self._respond(503, {}, b"")
            return
        if fault is Fault.DENIED:
            self._respond(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
            return
        if fault is Fault.STALLED:
            s3.stopped.wait(60)
            self.close_connection = True
            return
        connection = http.client.HTTPConnection("127.0.0.1", s3.server_port, timeout=30)
        try:
            sent = {name.lower(): text for name, text in self.headers.items()}
            connection.request(self.command, self.path, body, {**sent, **s3.replaced_headers})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if fault is Fault.LOST:
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in response.getheaders()}
        if fault is Fault.CORRUPT and self.command == "GET" and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._respond(response.status, headers, content, truncated=fault is Fault.TRUNCATED)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

    def _respond(
        self, status: int, headers: dict[str, str], content: bytes, *, truncated: bool = False
    ) -> None:
        self.send_response_only(status)
        if self.command != "HEAD":
            headers["content-length"] = str(len(content))
        for name, value in headers.items():
            if name not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if truncated:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""
