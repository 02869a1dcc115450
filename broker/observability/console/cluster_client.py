"""Requests of the console to the brokers of its cluster, of Ottla or Kafka.

A request to this broker goes to the handler that clients get, in the name of the viewer. One to
another broker goes over the inter-broker listener, and so in the name of this broker: the checks of
this broker's authorizer are made before it, with the viewer as its sender. ACLs are those of the
cluster, so the decision is the same on both ways. Changes are in the security log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.broker.observability.console.access import CLIENT_ID
from ottla.broker.requests.api_routes import entry_of
from ottla.broker.requests.request_context import (
    DEFERRED,
    HandlerEntry,
    RequestContext,
    Route,
    amend,
    started,
)
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.client.errors import ClientError, RequestTimedOutError
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.headers import RequestHeader
from ottla.protocol.message import Message
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import BrokerEndpoint, MetadataCache
    from ottla.broker.net.server import NetworkServer
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.requests.request_channel import RequestChannel
    from ottla.broker.requests.request_context import HandlerResult, Principal
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.authorization.access_control import Allows


# A page has ten seconds; two requests in a row fit.
DEADLINE_MS = 4000

# A broker that let a request time out gets no other one for so long, so that a page with several
# requests waits for it once.
SILENT_SECONDS = 10.0
# A caller that waits less finds a broker slow, not silent.
LEAST_SILENCE_SECONDS = 2.0

# How long a broker is taken for one of Ottla or Kafka; it may be replaced by one of the other.
KIND_SECONDS = 60.0
_BROKER = 4
_SETTING_OF_OTTLA = "ottla.console.enable"

# Requests to brokers at the same time, of one page.
MAX_AT_ONCE = 16

# Descriptions of the brokers in a note; the rest are counted.
MAX_PROBLEMS = 20

# The newest version that the console sends. Fetch has names of topics until 12, DeleteTopics until
# 5; the others are those of Kafka 3.9.
NEWEST_VERSIONS: Mapping[int, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    # Only for share groups, so only for brokers that serve them.
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 0,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
}

# Of a broker that has less, requests of the console cannot be understood.
_OLDEST_VERSIONS = {ApiKey.OFFSET_FETCH: 8}

Protect = Callable[[Sequence[HandlerEntry]], Sequence[HandlerEntry]]
ResponseT = TypeVar("ResponseT", bound=Message)


def _entries(own: Mapping[int, Route]) -> list[HandlerEntry]:
    """The lines of all APIs that the console uses; with share groups served by another broker only,
    those of the module that this one does not need."""
    entries = [own[key].entry for key in NEWEST_VERSIONS if key in own]
    if ApiKey.SHARE_GROUP_DESCRIBE not in own:
        from ottla.broker.handlers.groups.share_groups import ROUTES

        entries += [entry_of(each, _not_here) for each in ROUTES if each.key in NEWEST_VERSIONS]
    return entries


def _not_here(*_: object) -> None:
    raise AssertionError("this broker does not serve the API")


class NoResponse(Exception):
    """A broker could not be asked; the text says which, and why."""


class Responses(NamedTuple):
    """Of several brokers: what came, and a sentence for each that did not respond."""

    responses: dict[int, Any]
    problems: list[str]


class ClusterClient:
    """Sends requests in the name of a viewer. Loop only."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        own: Mapping[int, Route],
        remote: InterBrokerClient,
        protect: Protect,
        log: SecurityLog,
    ) -> None:
        """`own`: the handlers of this broker, which check and log by themselves; `remote` is only
        the console's; `protect` puts those checks in front of other handlers."""
        self.broker_id = broker_id
        self.metadata = metadata
        self._remote = remote
        self._silent: dict[int, tuple[float, str]] = {}  # until when, and why; by broker
        # Until when it holds that a broker with these endpoints is of Ottla.
        self._kinds: dict[int, tuple[dict[str, BrokerEndpoint], float, bool]] = {}
        sent = [
            entry._replace(
                min_version=0,
                max_version=NEWEST_VERSIONS[entry.api_key],
                handler=self._forward,
            )
            for entry in _entries(own)
        ]
        served = [own[key].entry for key in NEWEST_VERSIONS if key in own]
        self._here = {e.api_key: Route(e) for e in record_changes(served, log)}
        self._there = {e.api_key: Route(e) for e in record_changes(protect(sent), log)}

    def close(self) -> None:
        self._remote.close()

    async def ask(
        self,
        viewer: Viewer,
        broker_id: int,
        request: Message,
        kind: type[ResponseT],
        *,
        seconds: float | None = None,
    ) -> ResponseT:
        """The response of one broker, which has `seconds` for it, DEADLINE_MS by default.

        Raises KafkaError when the viewer may not send this, NoResponse when the broker cannot be
        reached or does not respond in time.
        """
        until, why = self._silent.get(broker_id, (0.0, ""))
        if until > monotonic():
            raise NoResponse(why)
        context = self._context(viewer, broker_id, request)
        try:
            response = await _handled(context, seconds)
        except (ClientError, OSError, TimeoutError) as error:
            text = f"Broker {broker_id} did not respond: {_reason(error, seconds)}."
            is_late = isinstance(error, (TimeoutError, RequestTimedOutError))
            if is_late and (seconds is None or seconds >= LEAST_SILENCE_SECONDS):
                self._silent[broker_id] = (monotonic() + SILENT_SECONDS, text)
            raise NoResponse(text) from error
        self._silent.pop(broker_id, None)
        assert isinstance(response, kind)
        return response

    async def ask_each(
        self,
        viewer: Viewer,
        requests: Mapping[int, Message],
        kind: type[ResponseT],
        *,
        seconds: float | None = None,
    ) -> Responses:
        """The responses of several brokers, each with its own request. Brokers that do not respond,
        or that the viewer may not ask, are named in the problems."""
        limit = asyncio.Semaphore(MAX_AT_ONCE)
        responses: dict[int, Any] = {}
        problems: dict[int, str] = {}

        async def one(broker_id: int, request: Message) -> None:
            async with limit:
                try:
                    responses[broker_id] = await self.ask(
                        viewer, broker_id, request, kind, seconds=seconds
                    )
                except NoResponse as problem:
                    problems[broker_id] = str(problem)
                except KafkaError as error:
                    problems[broker_id] = f"Broker {broker_id}: {error}"

        await asyncio.gather(*(one(*each) for each in requests.items()))
        shown = [problems[broker_id] for broker_id in sorted(problems)[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            shown.append(f"{len(problems) - MAX_PROBLEMS} more brokers did not respond.")
        return Responses(responses, shown)

    async def is_ottla(self, broker_id: int) -> bool:
        """Whether a broker is of Ottla. Kafka logs an error for what only Ottla has, so it is found
        out by a setting: an unknown one is none to Kafka. False for a broker that does not respond.
        """
        if broker_id == self.broker_id:
            return True
        broker = self.metadata.snapshot.brokers.get(broker_id)
        if broker is None:
            return False
        known = self._kinds.get(broker_id)
        if known is not None and known[0] == broker.endpoints and known[1] > monotonic():
            return known[2]
        resource = DescribeConfigsResource(_BROKER, str(broker_id), [_SETTING_OF_OTTLA])
        try:
            response = await self._remote.request_in_version(
                broker_id,
                ApiKey.DESCRIBE_CONFIGS,
                NEWEST_VERSIONS[ApiKey.DESCRIBE_CONFIGS],
                lambda version: DescribeConfigsRequest([resource]),
            )
        except (ClientError, OSError, TimeoutError):
            return False
        assert isinstance(response, DescribeConfigsResponse)
        found = any(result.configs for result in response.results)
        self._kinds[broker_id] = (broker.endpoints, monotonic() + KIND_SECONDS, found)
        return found

    def brokers(self) -> list[int]:
        """The brokers that are registered, by id."""
        return sorted(self.metadata.snapshot.brokers)

    def controller(self) -> int:
        """Raises KafkaError when no controller is elected."""
        controller_id = self.metadata.snapshot.controller_id
        if controller_id < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller now.")
        return controller_id

    def _context(self, viewer: Viewer, broker_id: int, request: Message) -> _Context:
        key = request.API_KEY
        is_here = broker_id == self.broker_id
        route = (self._here if is_here else self._there)[key]
        header = RequestHeader(key, NEWEST_VERSIONS[key], 0, CLIENT_ID)
        return _Context(broker_id, header, request, viewer.connection, route)

    async def _forward(self, context: RequestContext, request: Any) -> Message:
        assert isinstance(context, _Context)
        key = context.header.api_key

        def build(version: int) -> Message:
            if version < _OLDEST_VERSIONS.get(key, 0):
                raise ClientError(f"it has only version {version} of {context.route.entry.name}")
            message: Message = request
            return message

        return await self._remote.request_in_version(
            context.broker_id, key, NEWEST_VERSIONS[key], build
        )


class _Context(RequestContext):
    """A request whose response goes to a caller, not to a connection."""

    __slots__ = ("broker_id", "response")

    is_encoded = False

    def __init__(self, broker_id: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.broker_id = broker_id
        self.response: asyncio.Future[Message | None] = (
            asyncio.get_running_loop().create_future()
        )  # fmt: skip

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        if self.complete(response, throttle_time_ms) and not self.response.done():
            self.response.set_result(response)

    def close(self, reason: str) -> None:
        self._responded = True
        if not self.response.done():
            self.response.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, reason))


async def _handled(context: _Context, seconds: float | None) -> Message | None:
    """The response of the handler, with what access control amends."""
    result = started(context.route.handler(context, context.request))
    async with asyncio.timeout(DEADLINE_MS / 1000 if seconds is None else seconds):
        if isinstance(result, Coroutine):
            # A handler is never cancelled halfway: it continues when the page has given up.
            task = spawn(_finish(result), name=f"console-{context.route.entry.name}")
            outcome = await asyncio.shield(task)
            if isinstance(outcome, Exception):
                raise outcome
            result = outcome
        if result is not DEFERRED:
            context.respond(result)  # type: ignore[arg-type]
        return await context.response


async def _finish(result: Coroutine[Any, Any, Any]) -> Any:
    """The result of a handler, or its error: who waits for it raises that."""
    try:
        return await result
    except Exception as error:
        return error


def _reason(error: BaseException, seconds: float | None) -> str:
    if isinstance(error, TimeoutError):
        return f"no response in {DEADLINE_MS if seconds is None else seconds * 1000:.0f} ms"
    return str(error).rstrip(".") or type(error).__name__


def check(code: int, message: str | None = None) -> None:
    """Raises KafkaError for an error code of a response."""
    if code != ErrorCode.NONE:
        text = message or KafkaError(code).message
        raise KafkaError(code, f"{text.rstrip('.')} ({error_name(code)}).")


# What was changed, and the error code. Of a request and its response.
Row = tuple[str, int]
Describe = Callable[[Any, Any], Iterable[Row]]


def record_changes(table: Sequence[HandlerEntry], log: SecurityLog) -> list[HandlerEntry]:
    """The handlers with a line in the security log for each change."""
    return [_recorded(entry, log) for entry in table]


def _recorded(entry: HandlerEntry, log: SecurityLog) -> HandlerEntry:
    described = _CHANGES.get(entry.api_key)
    if described is None:
        return entry
    kind, describe = described
    handler = entry.handler

    def recorded(context: RequestContext, request: Any) -> HandlerResult:
        if not getattr(request, "validate_only", False):
            amend(context, lambda response: _write(log, context, kind, describe(request, response)))
        return handler(context, request)

    return entry._replace(handler=recorded)


def _write(log: SecurityLog, context: RequestContext, kind: str, rows: Iterable[Row]) -> None:
    for what, code in rows:
        error = None if code == ErrorCode.NONE else error_name(code)
        log.changed(context, kind, f"{what} (console)", error)


def _created(request: Any, response: Any) -> Iterable[Row]:
    for row in response.topics:
        yield f"Created topic {row.name}", row.error_code


def _deleted(request: Any, response: Any) -> Iterable[Row]:
    for row in response.responses:
        yield f"Deleted topic {row.name}", row.error_code


def _partitions(request: Any, response: Any) -> Iterable[Row]:
    counts = {topic.name: topic.count for topic in request.topics}
    for row in response.results:
        count = counts.get(row.name, "more")
        yield f"Changed topic {row.name} to {count} partitions", row.error_code


def _produced(request: Any, response: Any) -> Iterable[Row]:
    for topic in response.responses:
        for row in topic.partition_responses:
            where = f"{topic.name}-{row.index}"
            yield f"Produced a record to {where} at offset {row.base_offset}", row.error_code


def _committed(request: Any, response: Any) -> Iterable[Row]:
    for topic in response.topics:
        code = next((row.error_code for row in topic.partitions if row.error_code), ErrorCode.NONE)
        count = len(topic.partitions)
        yield f"Reset {count} offsets of group {request.group_id} in topic {topic.name}", code


def _deleted_groups(request: Any, response: Any) -> Iterable[Row]:
    for row in response.results:
        yield f"Deleted group {row.group_id}", row.error_code


_CHANGES: dict[int, tuple[str, Describe]] = {
    ApiKey.CREATE_TOPICS: ("topic", _created),
    ApiKey.DELETE_TOPICS: ("topic", _deleted),
    ApiKey.CREATE_PARTITIONS: ("topic", _partitions),
    ApiKey.PRODUCE: ("records", _produced),
    ApiKey.OFFSET_COMMIT: ("group", _committed),
    ApiKey.DELETE_GROUPS: ("group", _deleted_groups),
}


class ConsoleParts(NamedTuple):
    """The parts of a broker that the console reads, and the principal it acts for."""

    cluster_id: str
    client: ClusterClient
    network: NetworkServer
    request_channel: RequestChannel
    workers: WorkerPool
    now_ms: Callable[[], int]
    state: Callable[[], dict[str, Any]]  # as /statusz serves it
    allows: Allows  # `allow_all` without an authorizer
    principal: Principal  # in whose name the console shows and changes anything
    read_only: str  # why nothing can be changed, empty if it can


LATEST = -1
EARLIEST = -2

# Of one page: a request of 2000 partitions takes a leader some milliseconds.
MAX_LISTED = 2000


class Offsets(NamedTuple):
    """The known ones, and a sentence for each broker that did not respond."""

    found: dict[TopicPartition, int]
    problems: list[str]


async def list_offsets(
    client: ClusterClient,
    viewer: Viewer,
    partitions: Iterable[TopicPartition],
    timestamp: int | Mapping[TopicPartition, int],
    *,
    seconds: float | None = None,
) -> Offsets:
    """LATEST is the high watermark, EARLIEST the log start offset, a time in ms the first record
    that is not older; -1 is found where there is none. Partitions without a leader are left out,
    and topics that the viewer may not describe."""
    snapshot = client.metadata.snapshot
    by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    problems: list[str] = []
    without_leader: list[TopicPartition] = []
    for partition in partitions:
        state = snapshot.partition(partition.topic, partition.partition)
        if state is None or state.leader < 0:
            without_leader.append(partition)
            continue
        when = timestamp if isinstance(timestamp, int) else timestamp[partition]
        row = ListOffsetsPartition(partition_index=partition.partition, timestamp=when)
        topics = by_leader.setdefault(state.leader, {})
        topics.setdefault(partition.topic, []).append(row)
    if without_leader:
        count, first = len(without_leader), without_leader[0]
        problems.append(
            f"Partition {first} has no leader."
            if count == 1
            else f"{count} partitions have no leader, such as {first}."
        )
    requests = {
        leader: ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name=name, partitions=rows)
                for name, rows in topics.items()
                if viewer.may_describe_topic(name)
            ],
        )
        for leader, topics in by_leader.items()
    }
    gathered = await client.ask_each(viewer, requests, ListOffsetsResponse, seconds=seconds)
    problems.extend(gathered.problems)
    found: dict[TopicPartition, int] = {}
    for leader, response in sorted(gathered.responses.items()):
        codes: set[int] = set()
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code == ErrorCode.NONE:
                    found[TopicPartition(topic.name, row.partition_index)] = row.offset
                else:
                    codes.add(row.error_code)
        if codes:
            names = ", ".join(map(error_name, sorted(codes)))
            problems.append(f"Broker {leader} did not return all offsets: {names}.")
    return Offsets(found, problems)
