"""The web console: pages and JSON on the HTTP port, for one person with a browser.

`access` decides who is served, and what of it. What is shown comes from the brokers of the cluster
(`cluster_client`), and changes are requests to them. Every response is bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.access import (
    ConsoleDoor,
    ConsoleRequest,
    Refused,
    Viewer,
)
from ottla.broker.observability.console.browse import (
    MAX_DOWNLOADED,
    MAX_PARTITIONS,
    Browser,
    Query,
)
from ottla.broker.observability.console.cluster_client import NoResponse
from ottla.broker.observability.console.cluster_views import ClusterViews
from ottla.broker.observability.console.events import ClusterEvents, EventViews
from ottla.broker.observability.console.follow import Followers, positions_of
from ottla.broker.observability.console.groups import GroupActions, GroupViews
from ottla.broker.observability.console.history import History
from ottla.broker.observability.console.parameters import (
    InvalidParameter,
    NotFound,
    Parameters,
)
from ottla.broker.observability.console.record_views import VIEWS
from ottla.broker.observability.console.security_views import SecurityViews
from ottla.broker.observability.console.settings_views import consoles, settings
from ottla.broker.observability.console.topics import TopicActions, TopicViews
from ottla.broker.runtime.tasks import spawn, stop
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.observability.console.cluster_client import ConsoleParts
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.console.schemas import SchemaRegistry

logger = logging.getLogger("ottla.console")

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
SCRIPTS = (
    "api.js",
    "app.js",
    "chart.js",
    "cluster.js",
    "forms.js",
    "groups.js",
    "records.js",
    "security.js",
    "topics.js",
    "views.js",
)
_ASSETS = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    **{name: (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
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
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
)

_MAX_OFFSET = (1 << 63) - 1
_MAX_ROW = 1 << 31

_REFUSALS = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
# Others are a request that the cluster, as it is now, cannot fulfil: 409.
_STATUS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "404 Not Found",
    ErrorCode.GROUP_ID_NOT_FOUND: "404 Not Found",
    ErrorCode.BROKER_NOT_AVAILABLE: "404 Not Found",
    **dict.fromkeys(_REFUSALS, "403 Forbidden"),
}
# The right of each change, with the parameter that names the resource; none for the cluster. A
# refusal of the broker says only that one is missing.
_NEEDS = {
    "topic/create": (Operation.CREATE, ResourceType.TOPIC, "name"),
    "topic/delete": (Operation.DELETE, ResourceType.TOPIC, "name"),
    "topic/partitions": (Operation.ALTER, ResourceType.TOPIC, "name"),
    "topic/setting": (Operation.ALTER_CONFIGS, ResourceType.TOPIC, "name"),
    "broker/setting": (Operation.ALTER_CONFIGS, ResourceType.CLUSTER, ""),
    "record/produce": (Operation.WRITE, ResourceType.TOPIC, "topic"),
    "group/reset": (Operation.READ, ResourceType.GROUP, "group"),
    "group/delete": (Operation.DELETE, ResourceType.GROUP, "group"),
    "acl/create": (Operation.ALTER, ResourceType.CLUSTER, ""),
    "acl/delete": (Operation.ALTER, ResourceType.CLUSTER, ""),
    "user/set": (Operation.ALTER, ResourceType.CLUSTER, ""),
    "user/delete": (Operation.ALTER, ResourceType.CLUSTER, ""),
}

# A page that takes longer gets an error: soon after, the HTTP port closes the connection.
PAGE_SECONDS = 9.0

Page = Callable[[Parameters, Viewer], Awaitable[Any]]


class Console:
    """Serves /console and /api. Loop only; records are decoded in the worker pool."""

    #: The headers of each response beside its type and length.
    headers = SECURITY_HEADERS
    METHODS = ("GET", "HEAD", "POST")

    def __init__(
        self,
        parts: ConsoleParts,
        events: EventLog,
        door: ConsoleDoor,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._parts = parts
        self._door = door
        self._changes = ClusterEvents()
        self._following: asyncio.Task[None] | None = None
        self.history = History(parts, Viewer(parts.allows, parts.principal, "127.0.0.1"))
        self._browser = Browser(parts.client, parts.workers, registry)
        self._followers = Followers(parts.client, self._browser)
        self._topics = TopicViews(parts.client, self.history)
        self._groups = GroupViews(parts.client, self.history)
        self._security = SecurityViews(parts.client, parts.workers)
        self._pages = self._all_pages(EventViews(parts.client, events, self._changes))
        self._actions = self._all_actions()

    def _all_pages(self, events: EventViews) -> dict[str, Page]:
        parts = self._parts
        cluster = ClusterViews(parts, self.history)
        return {
            "ping": lambda _, viewer: _pong(),
            "overview": lambda _, viewer: cluster.overview(viewer),
            "consoles": lambda _, viewer: consoles(parts.client, viewer),
            "topics": lambda given, viewer: self._topics.listed(
                *_listed(given), viewer, only_problems=given.text("only", "") == "problems"
            ),
            "topic": lambda given, viewer: self._topics.one(
                given.text("name"), given.number("first", 0, 0, _MAX_ROW), viewer
            ),
            "groups": lambda given, viewer: self._groups.listed(
                *_listed(given), viewer, by_lag=given.text("sort", "") == "lag"
            ),
            "group": lambda given, viewer: self._groups.one(given.text("name"), viewer),
            "groups_of_topic": lambda given, viewer: self._groups.of_topic(
                given.text("name"), viewer
            ),
            "events": lambda given, viewer: events.shown(given.text("search", ""), viewer),
            "security": lambda given, viewer: self._security.shown(*_listed(given), viewer),
            "access": lambda given, viewer: self._security.access(
                given.text("resource"), given.text("name"), viewer
            ),
            "settings": lambda given, viewer: settings(parts.client, viewer, given.id("broker")),
            "messages": lambda given, viewer: self._browser.read(_query(given), viewer),
            "download": lambda given, viewer: self._browser.read(
                _query(given, MAX_DOWNLOADED)._replace(whole=True), viewer
            ),
            "unfollow": lambda given, _: self._followers.leave(given.text("follower")),
            "follow": lambda given, viewer: self._followers.follow(
                given.text("follower"),
                # From the positions on: the offset only says that it is not the end.
                _query(given)._replace(offset=0, limit=_MAX_LIMIT),
                positions_of(given.text("at"), MAX_PARTITIONS),
                viewer,
            ),
        }

    def _all_actions(self) -> dict[str, Page]:
        topics = TopicActions(self._parts.client, self._parts.now_ms)
        groups = GroupActions(self._parts.client, self.history)
        security = self._security
        return {
            "topic/create": topics.create,
            "topic/delete": topics.delete,
            "topic/partitions": topics.add_partitions,
            "topic/setting": topics.alter_topic,
            "broker/setting": topics.alter_broker,
            "record/produce": topics.produce,
            "group/plan": groups.plan_reset,
            "group/reset": groups.reset,
            "group/delete": groups.delete,
            "acl/create": security.create_acl,
            "acl/delete": security.delete_acl,
            "user/set": security.set_user,
            "user/delete": security.delete_user,
        }

    def start(self) -> None:
        """Begin to note rates, lags and what changes in the cluster."""
        self.history.start()
        parts = self._parts
        following = self._changes.follow(parts.client.metadata, parts.now_ms)
        self._following = spawn(following, name="console-events")

    async def stop(self) -> None:
        await self.history.stop()
        if self._following is not None:
            await stop(self._following)
            self._following = None
        self._parts.client.close()

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
            return await self._api(request, request.path.removeprefix(API), viewer)
        except Refused as refusal:
            if request.path.startswith(API):
                return _json(refusal.status, {"error": f"{refusal.text}."})
            return refusal.status, TEXT, f"{refusal.text}\n".encode()

    async def _api(
        self, request: ConsoleRequest, name: str, viewer: Viewer
    ) -> tuple[str, str, bytes]:
        try:
            if request.method == "POST":
                found = await self._act(request, name, viewer)
            else:
                found = await self._page(request.query, name, viewer)
        except InvalidParameter as error:
            return _json("400 Bad Request", {"error": f"{error}."})
        except NotFound as error:
            return _json("404 Not Found", {"error": str(error)})
        except NoResponse as error:
            return _json("503 Service Unavailable", {"error": str(error)})
        except KafkaError as error:
            status = _STATUS.get(error.code, "409 Conflict")
            return _json(status, {"error": error.message or str(error), "code": error.name})
        except (OSError, Refused):
            raise
        except Exception:
            logger.exception("The console cannot respond to %s /api/%s", request.method, name)
            text = f"This broker failed to respond (/api/{name[:100]}); its log has the error."
            return _json("500 Internal Server Error", {"error": text})
        if found is None:
            return _json("404 Not Found", {"error": f"There is no /api/{name[:100]}."})
        if isinstance(found, bytes):
            return "200 OK", JSON, found
        return _json("200 OK", found)

    async def _page(self, query: str, name: str, viewer: Viewer) -> Any:
        """The content of a page, None if it is unknown. Raises Refused when it takes too long."""
        page = self._pages.get(name)
        if page is None:
            return None
        parameters = Parameters.of_query(query)
        try:
            async with asyncio.timeout(PAGE_SECONDS) as limit:
                return await page(parameters, viewer)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"this page took broker {self._parts.client.broker_id} longer than"
            raise Refused("503 Service Unavailable", f"{text} {PAGE_SECONDS:g} s") from None

    async def _act(self, request: ConsoleRequest, name: str, viewer: Viewer) -> Any:
        """Return the result of a change; None if it is unknown."""
        self._door.check_action(request)
        action = self._actions.get(name)
        if action is None or request.body is None:
            return None
        given = Parameters.of_json(await request.body())
        try:
            return await action(given, viewer)
        except KafkaError as error:
            if error.code not in _REFUSALS or name not in _NEEDS:
                raise
            operation, kind, named = _NEEDS[name]
            resource = given.text(named) if named else CLUSTER_NAME
            missing = viewer.missing(operation, kind, resource)
            raise KafkaError(error.code, f"{missing}." if missing else error.message) from error


async def _pong() -> dict[str, Any]:
    """For a page that is not drawn again by itself: this broker still responds."""
    return {}


# Of one page of records.
_MAX_LIMIT = 200


def _query(given: Parameters, most: int = _MAX_LIMIT) -> Query:
    """Which records a page or a file has; `most` is the highest limit, and a file's default."""
    view = given.text("view", "auto")
    if view not in VIEWS:
        raise InvalidParameter(f"view is not one of {', '.join(VIEWS)}")
    return Query(
        topic=given.text("topic"),
        partition=given.id("partition"),
        offset=given.number("offset", -1, -1, _MAX_OFFSET),
        time_ms=given.number("time", -1, -1, _MAX_OFFSET),
        key=given.text("key", ""),
        value=given.text("value", ""),
        limit=given.number("limit", 50 if most == _MAX_LIMIT else most, 1, most),
        view=view,
    )


def _listed(given: Parameters) -> tuple[str, int]:
    return given.text("search", ""), given.number("first", 0, 0, _MAX_ROW)


def _json(status: str, value: Any) -> tuple[str, str, bytes]:
    return status, JSON, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _asset(name: str) -> tuple[str, str, bytes]:
    found = _ASSETS.get(name)
    if found is None:
        return "404 Not Found", TEXT, b"no such page; the console is /console\n"
    file, content_type = found
    path = files("ottla.broker.observability.console") / "assets" / file
    return "200 OK", content_type, path.read_bytes()
