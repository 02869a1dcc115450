"""Fault injection: a broker fails on request, so that a test sees how its client reacts.

    with broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", times=2):
        ...

A fault applies to the requests of one API, by Kafka's name; `topic` and `client_id` narrow it down.
It applies to requests that arrive while it is in force, not to those that the broker has already
begun to process, such as a fetch that waits for records. If several faults match a request, the one
that was added first applies.

Without faults there is no cost: the handler of an API is wrapped when its first fault is added and
restored when its last is removed. The public names are in `ottla.testing`.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.requests.request_context import (
    DEFERRED,
    Deferred,
    Handler,
    HandlerResult,
    RequestContext,
    started,
)
from ottla.broker.runtime.tasks import spawn
from ottla.broker.testing.hints import (
    FAULT_ATTRIBUTES,
    FAULT_KINDS,
    FORMS,
    ONE_FAULT_ATTRIBUTES,
    REMOVE,
    WAIT,
    missing,
    refuses,
)
from ottla.broker.testing.names import ApiName, ErrorName
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.registry import API_BY_NAME, api_name

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.fetch_sessions import FetchSessionCache
    from ottla.broker.requests.request_channel import RequestChannel
    from ottla.broker.requests.request_context import Route
    from ottla.protocol.message import Message

# Longer than any iteration of a working event loop; a broker that hangs must not hang the test.
_LOOP_SECONDS = 30.0

_FETCH = 1

_CODES = {name: number for name, number in vars(ErrorCode).items() if isinstance(number, int)}
_NAMES_BY_KEY = {entry.key: name for name, entry in API_BY_NAME.items()}

# Names that Kafka or librdkafka had or has for an error, and Kafka's name of today.
_OTHER_NAMES = {
    "GROUP_COORDINATOR_NOT_AVAILABLE": "COORDINATOR_NOT_AVAILABLE",
    "GROUP_LOAD_IN_PROGRESS": "COORDINATOR_LOAD_IN_PROGRESS",
    "MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "NOT_COORDINATOR_FOR_GROUP": "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "RECORD_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION",
    "UNKNOWN": "UNKNOWN_SERVER_ERROR",
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
}

# More names than the APIs are too many for an error.
_NAMES_SHOWN = 80

Result = TypeVar("Result")
# Takes a request that the fault matches, and the handler that would have served it.
_Effect = Callable[["Fault", RequestContext, Handler], HandlerResult]


class Fault:
    """One fault. It is in force until `remove`, the end of its `with` block, or its last time."""

    def __init__(
        self,
        owner: Faults,
        api_key: int,
        effect: _Effect,
        topic: str | None,
        client_id: str | None,
        times: int | None,
        what: str,
    ) -> None:
        """`what` names the effect, for `repr`."""
        self._what = what
        self.api_key = api_key
        self.topic = topic
        self.client_id = client_id
        #: How many requests it was applied to.
        self.hits = 0
        self.effect = effect
        self.removed = asyncio.Event()
        self._owner = owner
        self._left = times
        self._hit = threading.Condition()

    def __repr__(self) -> str:
        """The effect, the API, what limits it, and how often it was applied."""
        limits = {"topic": self.topic, "client_id": self.client_id, "left": self._left}
        parts = [f"{name}={limit!r}" for name, limit in limits.items() if limit is not None]
        state = "removed" if self.removed.is_set() else f"hits={self.hits}"
        return f"<Fault {' '.join([self._what, api_name(self.api_key), *parts, state])}>"

    if not TYPE_CHECKING:  # a type checker is to find them

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, ONE_FAULT_ATTRIBUTES)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End the fault. Connections whose requests were dropped are closed."""
        self._owner.remove(self)

    @refuses(WAIT)
    def wait(self, hits: int = 1, seconds: float = 30.0) -> bool:
        """Block until the fault was applied to `hits` requests, at most `seconds`. False if it was
        not: when the time is up, or at once when the fault has ended.

        In a coroutine: `await asyncio.to_thread(fault.wait)`. Raises RuntimeError on the thread of
        an event loop, which would be blocked, and TypeError or ValueError for other numbers."""
        __tracebackhide__ = True
        check_wait(hits, seconds)
        with self._hit:
            self._hit.wait_for(lambda: self.hits >= hits or self._has_ended, seconds)
            return self.hits >= hits

    @property
    def _has_ended(self) -> bool:
        return self.is_used_up or self.removed.is_set()

    @property
    def is_used_up(self) -> bool:
        """Whether it was applied `times` times."""
        return self._left == 0

    def mark_removed(self) -> None:
        """Wakes those that wait. Called on the broker's event loop only."""
        with self._hit:
            self.removed.set()
            self._hit.notify_all()

    def strike(self) -> None:
        """Counts a request. Called on the broker's event loop only."""
        with self._hit:
            if self._left is not None:
                self._left -= 1
            self.hits += 1
            self._hit.notify_all()


class Faults:
    """The faults of one broker. May be called from any thread but the broker's own.

    In every method, `api` is Kafka's name of an API, such as "Produce" (ValueError with the nearest
    name for an unknown one). `topic` limits a fault to requests that name this topic (ValueError
    for an API whose requests do not), `client_id` to those of this client, and `times` to that many
    requests.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, channel: RequestChannel, topics: TopicsOfRequests
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._topics = topics
        self._faults: dict[int, list[Fault]] = {}
        self._passed: set[RequestContext] = set()  # delayed already, now to be served

    if not TYPE_CHECKING:  # a type checker is to find them

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, FAULT_ATTRIBUTES)

    def __repr__(self) -> str:
        """Those in force, for a test that failed."""
        return f"<Faults {[fault for faults in list(self._faults.values()) for fault in faults]}>"

    # -- kinds of faults ------------------------------------------------------------------------

    @refuses(FAULT_KINDS["error"], form=FORMS["error"])
    def error(
        self,
        api: ApiName,
        code: ErrorName | int,
        *,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = None,
    ) -> Fault:
        """Requests are not executed. The response has an error code, by Kafka's name or number.

        A produce request with acks=0 has no response: its connection is closed, as Kafka does.
        Raises ValueError with the nearest name for a code that Kafka does not have.
        """
        if isinstance(api, str) and isinstance(code, str) and api in _CODES and code in API_BY_NAME:
            raise ValueError(f"the API is the first argument: error({code!r}, {api!r})")
        number = _error_code(code)

        def effect(fault: Fault, context: RequestContext, handler: Handler) -> HandlerResult:
            raise KafkaError(number, "injected fault")

        return self._add(api, effect, topic, client_id, times, f"error {error_name(number)}")

    @refuses(FAULT_KINDS["delay"], form=FORMS["delay"])
    def delay(
        self,
        api: ApiName,
        delay_ms: int,
        *,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = None,
    ) -> Fault:
        """Requests are executed `delay_ms` after they arrived. Raises ValueError for a delay that
        is not a number from 0 on."""
        if not isinstance(delay_ms, int | float) or not 0 <= delay_ms < math.inf:
            raise ValueError(
                f"delay_ms={delay_ms!r}: expected milliseconds, from 0 on, as in "
                "delay('Fetch', 2000)"
            )

        async def later(context: RequestContext) -> None:
            await asyncio.sleep(delay_ms / 1000)
            self._passed.add(context)
            self._channel.handle(context)

        def effect(fault: Fault, context: RequestContext, handler: Handler) -> HandlerResult:
            spawn(later(context), name=f"delayed-{context.route.entry.name}")
            return DEFERRED

        return self._add(api, effect, topic, client_id, times, f"delay {delay_ms} ms")

    @refuses(FAULT_KINDS["drop"], form=FORMS["drop"])
    def drop(
        self,
        api: ApiName,
        *,
        executed: bool = False,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = None,
    ) -> Fault:
        """Requests get no response, as from a broker that hangs. Their connections stay open until
        the fault is removed. `executed`: the requests are executed all the same."""

        async def hold(fault: Fault, context: RequestContext) -> None:
            try:
                await fault.removed.wait()
            finally:
                context.close("injected fault")

        def lost(fault: Fault, context: RequestContext) -> None:
            spawn(hold(fault, context), name=f"dropped-{context.route.entry.name}")

        return self._add(api, _losing(lost, executed), topic, client_id, times, "drop")

    @refuses(FAULT_KINDS["disconnect"], form=FORMS["disconnect"])
    def disconnect(
        self,
        api: ApiName,
        *,
        executed: bool = False,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = None,
    ) -> Fault:
        """The connection is closed instead of a response. `executed`: the request is executed
        first, so the client cannot know whether it was."""

        def lost(fault: Fault, context: RequestContext) -> None:
            context.close("injected fault")

        return self._add(api, _losing(lost, executed), topic, client_id, times, "disconnect")

    # -- adding and removing --------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all faults."""
        if not self._loop.is_closed():  # else they have ended with the broker
            self._on_loop(self._clear)

    def remove(self, fault: Fault) -> None:
        """Remove one fault, if it is in force. Raises TypeError for the name of an API."""
        __tracebackhide__ = True
        if not isinstance(fault, Fault):
            raise TypeError(f"remove({fault!r}): {REMOVE}")
        if not self._loop.is_closed():
            self._on_loop(lambda: self._forget(fault))

    def _add(
        self,
        api: str,
        effect: _Effect,
        topic: str | None,
        client_id: str | None,
        times: int | None,
        what: str,
    ) -> Fault:
        _check_api(api)
        known = API_BY_NAME.get(api)
        if known is None or known.key not in self._channel.routes:
            names = sorted(route.entry.name for route in self._channel.routes.values())
            raise ValueError(f"{api} is not an API of this broker: {nearest(api, names)}")
        for argument, value in (("topic", topic), ("client_id", client_id)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{argument}={value!r}: expected a str")
        if topic is not None and not _may_name_topics(known.request):
            raise ValueError(f"topic={topic!r}: {api} requests do not name topics")
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(f"times={times!r}: a fault applies to one request or more")
        fault = Fault(self, known.key, effect, topic, client_id, times, what)
        self._on_loop(lambda: self._enforce(fault))
        return fault

    def _enforce(self, fault: Fault) -> None:
        route = self._channel.routes[fault.api_key]
        faults = self._faults.setdefault(fault.api_key, [])
        if not faults:
            route.handler = self._wrapped(route, faults)
        faults.append(fault)

    def _forget(self, fault: Fault) -> None:
        fault.mark_removed()
        faults = self._faults.get(fault.api_key, [])
        if fault in faults:
            faults.remove(fault)
            if not faults:
                route = self._channel.routes[fault.api_key]
                route.handler = route.entry.handler

    def _clear(self) -> None:
        for faults in list(self._faults.values()):
            for fault in list(faults):
                self._forget(fault)

    def _wrapped(self, route: Route, faults: list[Fault]) -> Handler:
        real = route.entry.handler

        def handler(context: RequestContext, request: Message) -> HandlerResult:
            if context in self._passed:
                self._passed.discard(context)
                return real(context, request)
            for fault in faults:
                if not fault.is_used_up and self._fits(fault, context, request):
                    fault.strike()
                    return fault.effect(fault, context, real)
            return real(context, request)

        return handler

    def _fits(self, fault: Fault, context: RequestContext, request: Message) -> bool:
        if fault.client_id is not None and fault.client_id != context.header.client_id:
            return False
        return fault.topic is None or fault.topic in self._topics.of(request)

    def _on_loop(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        if self._loop.is_closed():
            raise RuntimeError("the broker of these faults is not running")
        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_LOOP_SECONDS)


def nearest(given: str, names: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """Words for a name that there is not: the one that differs in case and underscores only or has
    the name among `others`, else the nearest ones, else all."""
    known = list(names)
    folded = {_folded(name): name for name in known}
    same = {_folded(other): name for other, name in (others or {}).items()} | folded
    if _folded(given) in same:
        return f"did you mean {same[_folded(given)]}?"
    matches = difflib.get_close_matches(_folded(given), folded, n=3, cutoff=0.6)
    if matches:
        return f"did you mean {' or '.join(folded[each] for each in matches)}?"
    if len(known) > _NAMES_SHOWN:
        return "ottla.testing.ErrorName has the names"
    return f"use one of {', '.join(known)}"


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def check_wait(hits: object, seconds: object) -> None:
    """Raise for arguments of `Fault.wait` that it cannot have, and on a thread it would block."""
    __tracebackhide__ = True
    if type(hits) is not int:
        raise TypeError(
            f"hits={hits!r}: expected a number of requests, an int; a time is wait(seconds=5)"
        )
    if hits < 1:
        raise ValueError(f"hits={hits}: expected 1 or more; a time is wait(seconds=5)")
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValueError(f"seconds={seconds!r}: expected a number from 0 on")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "wait() blocks the event loop of this thread, so that its clients cannot send the request: "
        "await asyncio.to_thread(fault.wait)"
    )


def _check_api(api: object) -> None:
    __tracebackhide__ = True
    if isinstance(api, str):
        if "*" in api:
            raise ValueError(
                f"api={api!r}: there is no wildcard, since a fault has one API, such as 'Fetch'; "
                "call the method for each of them"
            )
        return
    if isinstance(api, Iterable):
        hint = "a fault has one API; call the method for each of them"
    elif type(api) is int and api in _NAMES_BY_KEY:
        hint = f"did you mean {_NAMES_BY_KEY[api]!r}?"
    else:
        hint = "such as 'Produce', which is the first argument"
    raise TypeError(f"api={api!r}: expected Kafka's name of an API: {hint}")


def _error_code(code: str | int) -> int:
    if isinstance(code, str):
        if code not in _CODES:
            meant = nearest(code, _CODES, _OTHER_NAMES)
            raise ValueError(f"{code} is not an error of Kafka: {meant}")
        code = _CODES[code]
    if type(code) is not int:
        raise TypeError(f"code={code!r}: expected an error by name or number, 'NOT_CONTROLLER'")
    if code == ErrorCode.NONE:
        raise ValueError("NONE (0) is the code of a success")
    return code


def _losing(lost: Callable[[Fault, RequestContext], None], executed: bool) -> _Effect:
    def effect(fault: Fault, context: RequestContext, handler: Handler) -> HandlerResult:
        if not executed:
            lost(fault, context)
            return DEFERRED
        without_response = _NoResponseContext(context, lambda: lost(fault, context))
        try:
            result = started(handler(without_response, context.request))
        except Exception:
            lost(fault, context)
            return DEFERRED
        if inspect.iscoroutine(result):
            spawn(
                _finish(result, without_response),
                name=f"without-response-{context.route.entry.name}",
            )
        elif not isinstance(result, Deferred):
            without_response.respond(None)
        return DEFERRED

    return effect


async def _finish(coroutine: Any, context: _NoResponseContext) -> None:
    try:
        with suppress(Exception):  # the error response would be lost too
            await coroutine
    finally:
        context.respond(None)


class _NoResponseContext(RequestContext):
    """A request that is executed and whose response is lost."""

    __slots__ = ("_lost",)

    def __init__(self, context: RequestContext, lost: Callable[[], None]) -> None:
        super().__init__(
            context.header,
            context.request,
            context.connection,
            context.route,
            context.frame_bytes,
            context.received_at,
        )
        self._lost = lost

    def respond(self, response: Message | None, throttle_time_ms: int = 0) -> None:
        if not self._responded:
            self._responded = True
            self._lost()

    def close(self, reason: str) -> None:
        self.respond(None)


class TopicsOfRequests:
    """Finds the topics that a request names."""

    def __init__(self, metadata: MetadataCache, sessions: FetchSessionCache) -> None:
        self._metadata = metadata
        self._sessions = sessions

    def of(self, request: Message) -> set[str]:
        """Their names, also where the request has topic ids or belongs to a fetch session."""
        found = set(_names_and_ids(request))
        if request.API_KEY == _FETCH:
            session = self._sessions.get(getattr(request, "session_id", 0))
            if session is not None:
                for each in session.partitions.values():
                    found.add(each.topic or each.topic_id)
        names = self._metadata.snapshot.topic_names
        return {each if isinstance(each, str) else names.get(each, "") for each in found} - {""}


def _may_name_topics(request: type[Message]) -> bool:
    slots: Iterable[str] = request.__slots__
    return any("topic" in slot or slot in _LISTS_AROUND_TOPICS for slot in slots)


def _names_and_ids(struct: Any) -> Iterator[str | bytes]:
    """The contents of lists of topics, at any depth: every API has its own layout."""
    for slot in struct.__slots__:
        if "topic" not in slot and slot not in _LISTS_AROUND_TOPICS:
            continue
        value = getattr(struct, slot)
        if not isinstance(value, list):
            continue
        for item in value:
            if isinstance(item, str):
                yield item
            elif slot in _LISTS_AROUND_TOPICS:
                yield from _names_and_ids(item)
            else:
                for name in ("name", "topic", "topic_name", "topic_id"):
                    own = getattr(item, name, None)
                    if own:
                        yield own


# Groups of OffsetFetch, directories of AlterReplicaLogDirs, markers of WriteTxnMarkers, ...
_LISTS_AROUND_TOPICS = frozenset(("groups", "dirs", "markers", "transactions"))
