"""Bearer tokens without a signature, as Kafka takes them by default, and an endpoint."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl


def unsecured_token(subject: str, *, lives_seconds: float = 3600) -> str:
    now = time.time()
    claims = {"sub": subject, "iat": min(now, now + lives_seconds - 1), "exp": now + lives_seconds}

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}."


def token_of_anna() -> tuple[str, float]:
    """For the option kafka.sasl.oauthbearer.token.function."""
    return unsecured_token("anna"), time.time() + 3600


def expired_token() -> str:
    return unsecured_token("anna", lives_seconds=-600)


class TokenEndpoint:
    """Takes one client's id and secret. `responses` are given first, before it behaves."""

    def __init__(self, server: ThreadingHTTPServer, client_id: str, client_secret: str) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}/token"
        self.credentials = f"{client_id}:{client_secret}"
        self.responses: list[tuple[int, dict[str, str], bytes]] = []
        self.forms: list[dict[str, str]] = []

    def response(self, authorization: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.forms.append(dict(parse_qsl(body.decode())))
        if self.responses:
            return self.responses.pop(0)
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if given != self.credentials:
            error = {"error": "invalid_client", "error_description": "who is that?"}
            return 401, {}, json.dumps(error).encode()
        subject = given.partition(":")[0]
        granted = {"access_token": unsecured_token(subject), "expires_in": 3600}
        return 200, {}, json.dumps(granted).encode()


@contextmanager
def token_endpoint(client_id: str, client_secret: str) -> Iterator[TokenEndpoint]:
    """An endpoint for the grant of client credentials, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code, headers, content = endpoint.response(self.headers["Authorization"], body)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint = TokenEndpoint(server, client_id, client_secret)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
