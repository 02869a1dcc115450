"""An S3 server, and a proxy before it that spoils requests. The server is moto's, or SeaweedFS with
OTTLA_TEST_S3=seaweedfs: `make test-s3-seaweedfs`.

with s3_server() as s3:
    s3.faults = [Fault.UNAVAILABLE, None, Fault.LOST]  # of the next requests; then there are none
    settings = s3.settings(**{"chunk.size": "1024"})
"""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.doubles.seaweedfs import seaweedfs

BUCKET = "bucket"
# Far from what a request needs on a busy machine.
ATTEMPT_TIMEOUT_MS = 10_000


class Fault(Enum):
    UNAVAILABLE = "503, the request is not carried out"
    LOST = "the request is carried out, and the connection is closed without a response"
    TRUNCATED = "the connection is closed in the middle of the body"
    CORRUPT = "a byte of the body is another one"
    DENIED = "403, the signature is wrong"
    STALLED = "no response comes"


class S3Server:
    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.faults: list[Fault | None] = []
        self.requests: list[str] = []
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self.port = 0

    def next_fault(self, line: str) -> Fault | None:
        with self._lock:
            self.requests.append(line)
            return self.faults.pop(0) if self.faults else None

    def settings(self, **more: str) -> dict[str, str]:
        """Those of the remote storage."""
        return {
            "storage.backend.class": "s3",
            "chunk.size": "1048576",
            "storage.s3.bucket.name": BUCKET,
            "storage.s3.region": "us-east-1",
            "storage.s3.endpoint.url": f"http://127.0.0.1:{self.port}",
            "storage.s3.multipart.upload.part.size": str(5 * 1024 * 1024),
            "storage.s3.api.call.attempt.timeout": str(ATTEMPT_TIMEOUT_MS),
            "storage.aws.access.key.id": "key",
            "storage.aws.secret.access.key": "secret",
            **more,
        }


@contextmanager
def _moto() -> Iterator[int]:
    """Its port. Needs moto, flask and flask-cors."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        port = moto.get_host_and_port()[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        connection.close()
        yield port
    finally:
        moto.stop()


def _server() -> AbstractContextManager[int]:
    name = os.environ.get("OTTLA_TEST_S3", "moto")
    return {"moto": _moto, "seaweedfs": seaweedfs}[name]()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """With an empty bucket."""
    with _server() as port, _proxied(port) as server:
        yield server


@contextmanager
def _proxied(port: int) -> Iterator[S3Server]:
    server = S3Server(port)
    proxy = _Proxy(("127.0.0.1", 0), _Handler)
    proxy.s3 = server
    server.port = proxy.server_address[1]
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("PUT", f"/{BUCKET}", headers={"x-amz-acl": "private"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()
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
        keys = body.decode() if self.path.endswith("?delete") else ""
        fault = s3.next_fault(f"{self.command} {self.path} {keys}".strip())
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
            connection.request(self.command, self.path, body, dict(self.headers))
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
