"""The web console: pages and JSON on the HTTP port, for one person with a browser.

It only reads. It shows records, so it serves this machine alone unless
`ottla.console.allow.remote` is true; a name in the Host header that is not this machine's is
refused then too, since another site could have pointed its own name here (DNS rebinding). Every
response is bounded.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from ottla.broker.observability.console import cluster_views, group_views
from ottla.broker.observability.console.history import History
from ottla.broker.observability.console.messages import Peek
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

_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
# A page sends a handful of short parameters.
_MAX_PARAMETERS = 16


class ConsoleRequest(NamedTuple):
    """What the console needs to know of an HTTP request."""

    path: str
    query: str
    host: str
    peer: str


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

    def __init__(self, parts: ConsoleParts, events: EventLog, *, allow_remote: bool) -> None:
        self._allow_remote = allow_remote
        self.history = History(parts)
        self._peek = Peek(parts.replica_manager, parts.workers)
        history = self.history
        self._responses: dict[str, Callable[[Parameters], Any]] = {
            "overview": lambda parameters: cluster_views.overview(parts, history),
            "topics": lambda parameters: cluster_views.topics(
                parts, parameters.text("search", ""), parameters.number("first", 0, 0, 1 << 31)
            ),
            "topic": lambda parameters: cluster_views.topic(parts, parameters.text("name")),
            "groups": lambda parameters: group_views.groups(
                parts, history, parameters.text("search", "")
            ),
            "group": lambda parameters: group_views.group(parts, history, parameters.text("name")),
            "events": lambda parameters: events.rows(parameters.text("search", "")),
            "settings": lambda parameters: cluster_views.settings(parts),
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
        if not self._allow_remote and not (_is_local(request.peer) and _names_us(request.host)):
            text = (
                "the console serves this machine only, by the name localhost; "
                "ottla.console.allow.remote=true opens it\n"
            )
            return "403 Forbidden", TEXT, text.encode()
        if request.path.startswith(API):
            return await self._api(request.path.removeprefix(API), request.query)
        return _asset(request.path.removeprefix(PREFIX).strip("/"))

    async def _api(self, name: str, query: str) -> tuple[str, str, bytes]:
        try:
            parameters = Parameters(query)
            if name == "messages":
                found = await self._messages(parameters)
            elif name in self._responses:
                found = self._responses[name](parameters)
            else:
                return _json("404 Not Found", {"error": f"there is no /api/{name[:100]}"})
        except InvalidParameter as error:
            return _json("400 Bad Request", {"error": f"{error}."})
        except KafkaError as error:
            return _json("404 Not Found", {"error": str(error)})
        return _json("200 OK", found)

    async def _messages(self, parameters: Parameters) -> dict[str, Any]:
        limit = parameters.number("limit", 50, 1, 200)
        offset = parameters.number("offset", -1, -1, (1 << 63) - 1)
        partition = parameters.number("partition", 0, 0, (1 << 31) - 1)
        return await self._peek.read(parameters.text("topic"), partition, offset, limit)


def _json(status: str, value: Any) -> tuple[str, str, bytes]:
    return status, JSON, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _asset(name: str) -> tuple[str, str, bytes]:
    found = _ASSETS.get(name)
    if found is None:
        return "404 Not Found", TEXT, b"no such page; the console is /console\n"
    file, content_type = found
    path = files("ottla.broker.observability.console") / "assets" / file
    return "200 OK", content_type, path.read_bytes()


def _is_local(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _names_us(host: str) -> bool:
    """Whether a Host header (with a port or without) names this machine."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or host.endswith("]"):
        name = host
    return name.strip("[]").lower() in _LOCAL_NAMES
