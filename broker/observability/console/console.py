"""The web console: pages and JSON on the HTTP port, for one person with a browser.

It only reads. `access` decides who is served, and what of it. Every response is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ottla.broker.observability.console import cluster_views, group_views
from ottla.broker.observability.console.access import (
    ConsoleDoor,
    ConsoleRequest,
    Refused,
    Viewer,
)
from ottla.broker.observability.console.history import History
from ottla.broker.observability.console.messages import Peek
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.observability.console.console_parts import ConsoleParts
    from ottla.broker.observability.console.event_log import EventLog

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_ASSETS = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "views.js": ("views.js", "text/javascript; charset=utf-8"),
}
PREFIX = "/console"
API = "/api/"

# Nothing from elsewhere, in no frame, never kept by a cache.
SECURITY_HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
)

# A page sends a handful of short parameters.
_MAX_PARAMETERS = 16


class InvalidParameter(Exception):
    """A parameter that is missing or invalid; the text names it."""


class Parameters:
    """The query of a URL, typed; raises InvalidParameter."""

    def __init__(self, query: str) -> None:
        try:
            given = parse_qs(query, max_num_fields=_MAX_PARAMETERS, errors="strict")
        except ValueError:
            raise InvalidParameter("the query cannot be read") from None
        self._given = {name: values[-1] for name, values in given.items()}

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise InvalidParameter(f"the parameter {name} is missing")
        return value

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number, moved into its range."""
        text = self._given.get(name)
        if text is None:
            return default
        if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 19:
            raise InvalidParameter(f"{name} is not a whole number")
        return max(low, min(int(text), high))


class Console:
    """Serves /console and /api. Loop only; records are decoded in the worker pool."""

    #: The headers of each response beside its type and length.
    headers = SECURITY_HEADERS

    def __init__(self, parts: ConsoleParts, events: EventLog, door: ConsoleDoor) -> None:
        self._parts = parts
        self._door = door
        self.history = History(parts)
        self._peek = Peek(parts.replica_manager, parts.workers)
        history = self.history

        def shown_events(parameters: Parameters, viewer: Viewer) -> Any:
            viewer.require_on_cluster(Operation.DESCRIBE)
            return events.rows(parameters.text("search", ""))

        self._responses: dict[str, Callable[[Parameters, Viewer], Any]] = {
            "overview": lambda _, viewer: cluster_views.overview(parts, history, viewer),
            "topics": lambda parameters, viewer: cluster_views.topics(
                parts,
                parameters.text("search", ""),
                parameters.number("first", 0, 0, 1 << 31),
                viewer,
            ),
            "topic": lambda parameters, viewer: cluster_views.topic(
                parts, parameters.text("name"), viewer
            ),
            "groups": lambda parameters, viewer: group_views.groups(
                parts, history, parameters.text("search", ""), viewer
            ),
            "group": lambda parameters, viewer: group_views.group(
                parts, history, parameters.text("name"), viewer
            ),
            "events": shown_events,
            "settings": lambda _, viewer: cluster_views.settings(parts, viewer),
        }

    def start(self) -> None:
        """Begins to note rates and lags."""
        self.history.start()

    async def stop(self) -> None:
        await self.history.stop()

    @staticmethod
    def handles(path: str) -> bool:
        return path in ("/", PREFIX) or path.startswith((f"{PREFIX}/", API))

    async def respond(self, request: ConsoleRequest) -> tuple[str, str, bytes]:
        """Status, content type and body."""
        try:
            self._door.check_address(request)
            if not request.path.startswith(API):
                # The pages have nothing of the cluster; they get the token from their user.
                return _asset(request.path.removeprefix(PREFIX).strip("/"))
            self._door.check_token(request)
            viewer = Viewer(self._parts.allows, self._parts.principal, request.peer)
            return await self._api(request.path.removeprefix(API), request.query, viewer)
        except Refused as refusal:
            if request.path.startswith(API):
                return _json(refusal.status, {"error": f"{refusal.text}."})
            return refusal.status, TEXT, f"{refusal.text}\n".encode()

    async def _api(self, name: str, query: str, viewer: Viewer) -> tuple[str, str, bytes]:
        try:
            parameters = Parameters(query)
            if name == "messages":
                found = await self._messages(parameters, viewer)
            elif name in self._responses:
                found = self._responses[name](parameters, viewer)
            else:
                return _json("404 Not Found", {"error": f"there is no /api/{name[:100]}"})
        except InvalidParameter as error:
            return _json("400 Bad Request", {"error": f"{error}."})
        except KafkaError as error:
            return _json("404 Not Found", {"error": str(error)})
        return _json("200 OK", found)

    async def _messages(self, parameters: Parameters, viewer: Viewer) -> dict[str, Any]:
        topic = parameters.text("topic")
        viewer.require(Operation.READ, ResourceType.TOPIC, topic)
        limit = parameters.number("limit", 50, 1, 200)
        offset = parameters.number("offset", -1, -1, (1 << 63) - 1)
        partition = parameters.number("partition", 0, 0, (1 << 31) - 1)
        return await self._peek.read(topic, partition, offset, limit)


def _json(status: str, value: Any) -> tuple[str, str, bytes]:
    return status, JSON, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _asset(name: str) -> tuple[str, str, bytes]:
    found = _ASSETS.get(name)
    if found is None:
        return "404 Not Found", TEXT, b"no such page; the console is /console\n"
    file, content_type = found
    path = files("ottla.broker.observability.console") / "assets" / file
    return "200 OK", content_type, path.read_bytes()
