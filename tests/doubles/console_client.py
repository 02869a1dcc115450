"""What a page of the console sends, for tests."""

from __future__ import annotations

import http.client
import json
from typing import Any


class ConsoleClient:
    """Requests to the console on a port of this machine."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._port = port
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        """The JSON of a page that is served."""
        status, found = self.send("GET", path)
        assert status == 200, found
        return found

    def act(self, path: str, **body: Any) -> Any:
        """The JSON of a change that is made."""
        status, found = self.send("POST", path, body)
        assert status == 200, found
        return found

    def refused(self, path: str, **body: Any) -> tuple[int, str]:
        """Status and text of a change that is not."""
        status, found = self.send("POST", path, body)
        assert status != 200, found
        return status, found["error"]

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON; a body has the headers of the console's own pages."""
        sent = {**self._headers}
        if body is not None:
            sent |= {"Content-Type": "application/json", "X-Ottla-Console": "1"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/api/{path}", data, sent | (headers or {}))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()
