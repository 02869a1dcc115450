"""A session with a ZooKeeper ensemble, on kazoo, for the event loop.

kazoo has two threads (connection, callbacks); their results are passed to the event loop, which
never waits for them. This class adds to kazoo:

* the connection of zookeeper_connection.py, which shares a session timeout among the hosts;
* a deadline for each call. While disconnected, calls wait on the loop, not in kazoo's queue: a
  write that timed out is never sent later. Reads are retried after a lost connection; writes are
  not, since they may have been applied: they raise `ConnectionLost`;
* a window of requests in flight (`MAX_IN_FLIGHT`) for pipelined reads and writes;
* persistent watches over reconnections and sessions (zookeeper_watches.py).
"""

import asyncio
import logging
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ottla.controller.tree.kafka_port import kafka_port
from ottla.controller.tree.store import (
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    SESSION_SUSPENDED,
    ConnectionLost,
    NotPermitted,
    SessionCallback,
    SessionExpired,
    StoreError,
    WatchCallback,
    WatchHandle,
    ZooKeeperUnreachable,
)
from ottla.controller.tree.zookeeper_errors import error_from, is_connection_loss
from ottla.controller.tree.zookeeper_watches import PersistentWatch

if TYPE_CHECKING:
    from ottla.controller.tree.zookeeper_connection import Client

logger = logging.getLogger("ottla.zookeeper")

MAX_IN_FLIGHT = 128
"""Requests passed to kazoo without a response yet. Each writes a byte to kazoo's notification pipe,
a blocking socket pair with room for about 270: more could block the event loop."""
READ_RESPONSES_SECONDS = 0.05
"""After a deadline, for the responses that kazoo's threads have read already."""
CLOSE_TIMEOUT_SECONDS = 3.0
"""For the server's response to the end of the session, and for kazoo's threads to end."""
STOP_TIMEOUT_SECONDS = 10.0
"""For the thread of a client that was stopped already; the same as kazoo's own timeout."""
RESTART_DELAY_SECONDS = 1.0
"""Before a failed client is replaced, so that repeated failures are no busy loop."""

T = TypeVar("T")
# What kazoo's asynchronous calls return; kazoo has no types.
AsyncResult = Any


class _Refused:
    """The result of a call that was not sent."""

    __slots__ = ("exception", "value")

    def __init__(self, exception: Exception) -> None:
        self.exception = exception
        self.value = None


class _Subscription:
    __slots__ = ("callback", "callbacks")

    def __init__(self, callbacks: list[SessionCallback], callback: SessionCallback) -> None:
        self.callbacks = callbacks
        self.callback = callback
        callbacks.append(callback)

    def cancel(self) -> None:
        if self.callback in self.callbacks:
            self.callbacks.remove(self.callback)


def split_connect(connect: str) -> tuple[str, str]:
    """`h1:2181,h2:2181/kafka` -> (`h1:2181,h2:2181`, `/kafka`); the path may be empty.

    Blanks around hosts and hosts without a name are dropped, as Kafka does, and repeated slashes.
    Raises ValueError with a sentence.
    """
    text, slash, path = connect.partition("/")
    hosts = [host for host in map(str.strip, text.split(",")) if host]
    if not hosts:
        raise ValueError("zookeeper.connect names no host; the form is HOST:PORT,HOST:PORT/PATH.")
    for host in hosts:
        _check_host(host)
    parts = [part for part in path.strip().split("/") if part] if slash else []
    if "." in parts or ".." in parts:
        raise ValueError(f"zookeeper.connect: the path /{path} has a part '.' or '..'.")
    return ",".join(hosts), "".join(f"/{part}" for part in parts)


def _check_host(host: str) -> None:
    try:
        parsed = urlsplit(f"//{host}")
        named = bool(parsed.hostname) and (parsed.port is None or parsed.port > 0)
    except ValueError:
        named = False
    if not named or " " in host or "@" in host:
        raise ValueError(
            f"zookeeper.connect: {host!r} is not HOST:PORT; an IPv6 address has brackets, "
            f"[ADDRESS]:PORT."
        )


class ZooKeeperSession:
    """`connect` is zookeeper.connect: hosts and an optional chroot. `credentials` are (scheme,
    text) pairs such as ("digest", "user:password"); `sasl` are kazoo's SASL options; `tls`
    makes the context of a connection with TLS; `unix_path` is of a socket to use instead of a host.
    Raises ValueError for a `connect` that is none."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        call_timeout_ms: int | None = None,
        credentials: Sequence[tuple[str, str]] = (),
        sasl: Mapping[str, Any] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        unix_path: str = "",
    ) -> None:
        self.hosts, self.chroot = split_connect(connect)
        if "," in self.chroot:
            logger.warning(
                "zookeeper.connect: the path %s has a comma; the path is written once, after the "
                "last host",
                self.chroot,
            )
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms
        # After a session timeout without a connection the session has expired anyway.
        self._call_timeout_ms = call_timeout_ms or session_timeout_ms
        #: The session timeout; the server's maximum may be less than what is requested.
        self.agreed_timeout_ms = 0
        self._credentials = list(credentials)
        self._sasl = dict(sasl) if sasl is not None else None
        self._tls = tls
        self._unix_path = unix_path
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session_id = 0
        self._connected = False
        self._connections = 0  # the number of connections so far, and of the newest
        self._closing = False
        self._refused = False
        self._ending: list[asyncio.Future[None]] = []  # of clients that were replaced
        self._in_flight = 0
        self._waiting_for_slot: deque[asyncio.Future[None]] = deque()
        self._waiting_for_connection: list[asyncio.Future[None]] = []
        self._session_callbacks: list[SessionCallback] = []
        self._watches: set[PersistentWatch] = set()
        self._waiting_arms: deque[tuple[Callable[[], AsyncResult], Callable[[AsyncResult], None]]]
        self._waiting_arms = deque()

    # Connection

    @property
    def session_id(self) -> int:
        return self._session_id

    def _make_client(self) -> "Client":
        from ottla.controller.tree.zookeeper_connection import Client

        first_ms = min(self._session_timeout_ms, self._connection_timeout_ms)
        return Client(
            self.hosts + self.chroot,
            connect_seconds=first_ms / 1000,
            was_connected=self._connections > 0,
            make_context=self._tls,
            sasl=self._sasl,
            unix_path=self._unix_path,
            timeout=self._session_timeout_ms / 1000,
            auth_data=self._credentials or None,
            # For ever, with a short maximum delay: brokers reconnect soon after an outage.
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0},
            logger=logging.getLogger("ottla.zookeeper.client"),
        )

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._client = self._make_client()
        client = self._client
        client.add_listener(lambda state: self._state_changed(state, client))
        client.start_async()
        deadline = self._loop.time() + self._connection_timeout_ms / 1000
        try:
            await self._until_connected("", deadline)
            # A server that wants SASL from a client without a login says so with a response.
            await self.request("/", lambda: client.exists_async("/"), repeat=True)
        except ConnectionLost:
            reason = f" ({client.problem})" if client.problem else ""
            await self.close()
            raise ZooKeeperUnreachable(
                "",
                f"No connection to ZooKeeper at {self.hosts} within "
                f"{self._connection_timeout_ms} ms{reason}; {await self._advice()}",
            ) from None
        except StoreError:
            await self.close()  # else the client goes on connecting
            raise

    async def _advice(self) -> str:
        """What to correct after all hosts have failed."""
        kafka = "" if self._unix_path else await kafka_port(self.hosts)
        if kafka:
            return (
                f"{kafka} is the port of a Kafka broker: write the address of ZooKeeper into "
                f"zookeeper.connect, usually port 2181"
            )
        return "is it running, and is zookeeper.connect right?"

    async def close(self) -> None:
        self._closing = True
        for watch in list(self._watches):
            watch.cancel()
        client, self._client = self._client, None
        self._connected = False
        self._session_id = 0
        for waiter in self._waiting_for_connection:
            if not waiter.done():
                waiter.set_exception(ConnectionLost("", "The store is closed."))
        self._waiting_for_connection.clear()
        if client is not None:
            self._end(client)
        if not self._ending:
            return
        # A thread may be in a call that nothing interrupts, such as a connection to a host that
        # drops SYNs, and a server that hangs does not respond to the end of the session.
        _, left = await asyncio.wait(self._ending, timeout=CLOSE_TIMEOUT_SECONDS)
        if left:
            logger.warning("Leaving the ZooKeeper session to its timeout: no server responds")

    def kazoo(self) -> "Client":
        """The client of now; one that has stopped is replaced."""
        if self._client is None:
            raise ConnectionLost("", "The store is not connected.")
        return self._client

    # Session (the first of these runs in a thread of kazoo)

    def _state_changed(self, state: str, client: "Client") -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._on_state, str(state), str(client.client_state), client)

    def _on_state(self, state: str, detail: str, client: "Client") -> None:
        if self._closing or self._client is None or client is not self._client:
            return
        if state == "CONNECTED":
            client_id = client.client_id
            if client_id is None:  # disconnected again; the next state follows
                return
            self._connected = True
            self._connections += 1
            self._session_id = client_id[0]
            self.agreed_timeout_ms = client.session_timeout_ms
            self._notify_waiters()
            for watch in list(self._watches):
                watch.rearm()
            self._notify_session_callbacks(SESSION_CONNECTED)
        elif state == "SUSPENDED":
            self._connected = False
            self._waiting_arms.clear()  # all watches are set again after the reconnection
            self._notify_session_callbacks(SESSION_SUSPENDED)
        else:
            self._connected = False
            self._waiting_arms.clear()
            if self._session_id:
                self._session_id = 0
                self._notify_session_callbacks(SESSION_EXPIRED)
            if detail == "AUTH_FAILED":  # kazoo does not retry
                self._refused = True
                self._notify_waiters()
            elif detail == "CLOSED":
                assert self._loop is not None
                logger.error("The ZooKeeper client has stopped; restarting it")
                self._loop.call_later(RESTART_DELAY_SECONDS, self._restart_client)

    def _restart_client(self) -> None:
        """kazoo's connection thread ends on a response that it cannot decode."""
        if self._closing or self._client is None or self._loop is None:
            return
        self._end(self._client)
        client = self._client = self._make_client()
        client.add_listener(lambda state: self._state_changed(state, client))
        client.start_async()

    def _end(self, client: "Client") -> None:
        """Close the session of the client and join its threads, in a thread that the process does
        not wait for at its end. Only `close` waits for that, for a while."""
        loop = self._loop
        assert loop is not None
        ended: asyncio.Future[None] = loop.create_future()
        self._ending = [each for each in self._ending if not each.done()]
        self._ending.append(ended)

        def run() -> None:
            _stop(client)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, ended)

        threading.Thread(target=run, name="zookeeper-close", daemon=True).start()

    def _notify_waiters(self) -> None:
        for waiter in self._waiting_for_connection:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting_for_connection.clear()

    def _notify_session_callbacks(self, event: str) -> None:
        for callback in list(self._session_callbacks):
            callback(event)

    def on_session(self, callback: SessionCallback) -> WatchHandle:
        return _Subscription(self._session_callbacks, callback)

    # Requests

    def _deadline(self) -> float:
        assert self._loop is not None
        timeout_ms = min(self._call_timeout_ms, self.agreed_timeout_ms or self._call_timeout_ms)
        return self._loop.time() + timeout_ms / 1000

    async def _until(self, future: "asyncio.Future[T]", path: str, deadline: float) -> T:
        """The result of the future; ConnectionLost if the deadline passes first.

        If the loop was blocked past the deadline, the timer runs before the responses that arrived
        meanwhile. Those are read first, because a controller with a lost connection resigns.
        """
        loop = self._loop
        assert loop is not None
        timer: asyncio.TimerHandle

        def fail_with_connection_loss() -> None:
            if not future.done():
                future.set_exception(
                    ConnectionLost(
                        path, f"ZooKeeper did not respond to {path or 'a request'} in time"
                    )
                )

        def expire() -> None:
            nonlocal timer
            timer = loop.call_later(
                READ_RESPONSES_SECONDS, lambda: loop.call_soon(fail_with_connection_loss)
            )

        timer = loop.call_at(deadline, expire)
        try:
            return await future
        finally:
            timer.cancel()

    async def _until_connected(self, path: str, deadline: float) -> None:
        assert self._loop is not None
        while not (self.kazoo().connected and self._connected):
            self._connected = False
            if self._refused:
                raise NotPermitted(
                    path,
                    f"ZooKeeper at {self.hosts} refused the credentials; check the user and "
                    f"password of the broker's ZooKeeper login",
                )
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting_for_connection.append(waiter)
            try:
                await self._until(waiter, path, deadline)
            finally:
                if waiter in self._waiting_for_connection:
                    self._waiting_for_connection.remove(waiter)

    async def _take_slot(self, path: str, deadline: float) -> None:
        assert self._loop is not None
        while self._in_flight >= MAX_IN_FLIGHT:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting_for_slot.append(waiter)
            await self._until(waiter, path, deadline)
        self._in_flight += 1

    def submit(self, start: Callable[[], AsyncResult], done: Callable[[AsyncResult], None]) -> None:
        """Start a call of kazoo; `done` runs on the loop with its result, or with the error of
        a call that kazoo refuses to start."""
        loop = self._loop
        assert loop is not None

        def finished(result: AsyncResult) -> None:  # in a thread of kazoo
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._finished, result, done)

        try:
            started = start()
        except Exception as error:
            loop.call_soon(self._finished, _Refused(error), done)
            return
        started.rawlink(finished)

    def _finished(self, result: AsyncResult, done: Callable[[AsyncResult], None]) -> None:
        self._in_flight -= 1
        while self._waiting_for_slot:  # one for each pipeline, so there are few; each checks again
            waiter = self._waiting_for_slot.popleft()
            if not waiter.done():
                waiter.set_result(None)
        done(result)
        self._start_arms()

    async def request(
        self, path: str, start: Callable[[], AsyncResult], *, repeat: bool = False
    ) -> Any:
        """A call with a deadline; `repeat` for reads, which are retried.

        `start` takes the client from `kazoo`: it may be another one since the call waits.
        """
        assert self._loop is not None
        deadline = self._deadline()
        while True:
            await self._until_connected(path, deadline)
            await self._take_slot(path, deadline)
            future: asyncio.Future[AsyncResult] = self._loop.create_future()
            connection = self._connections
            self.submit(start, _settler(future))
            result = await self._until(future, path, deadline)
            error = result.exception
            if error is None:
                return result.value
            if not (repeat and is_connection_loss(error)):
                raise error_from(error, path)
            self._lost(connection)

    def _lost(self, connection: int) -> None:
        """A call failed because this connection was lost.

        The change of state follows, or came before the result of the call, perhaps with the next
        connection, which is not lost.
        """
        if connection == self._connections:
            self._connected = False

    async def pipeline(
        self, starts: Sequence[Callable[[], AsyncResult]], *, repeat: bool
    ) -> list[AsyncResult]:
        """Send many calls, within the window of requests in flight; return the results in order.

        The deadline is that of one call, and moves with each response: a batch may take longer than
        a session timeout while ZooKeeper responds all the time. Raises ConnectionLost or
        SessionExpired if one of the calls failed with it.
        """
        assert self._loop is not None
        futures: list[asyncio.Future[AsyncResult]] = []
        connections: list[int] = []
        for start in starts:
            await self._until_connected("", self._deadline())
            await self._take_slot("", self._deadline())
            future: asyncio.Future[AsyncResult] = self._loop.create_future()
            futures.append(future)
            connections.append(self._connections)
            self.submit(start, _settler(future))
        # The responses come in the order of the calls.
        results = [
            future.result() if future.done() else await self._until(future, "", self._deadline())
            for future in futures
        ]
        again = [
            index for index, result in enumerate(results) if is_connection_loss(result.exception)
        ]
        if again and repeat:
            self._lost(max(connections[index] for index in again))
            repeated = await self.pipeline([starts[index] for index in again], repeat=True)
            for index, result in zip(again, repeated, strict=True):
                results[index] = result
        for result in results:
            if result.exception is not None:
                error = error_from(result.exception, "")
                if isinstance(error, (ConnectionLost, SessionExpired)):
                    raise error
        return results

    async def watch(
        self, watches: Sequence[tuple[str, WatchCallback]], *, on_children: bool
    ) -> list[WatchHandle]:
        assert self._loop is not None
        await self._until_connected("", self._deadline())
        standing: list[PersistentWatch] = []
        for path, callback in watches:
            watch = PersistentWatch(
                self.kazoo,
                path,
                on_children,
                callback,
                self._arm,
                self._loop,
                self._watches.discard,
            )
            standing.append(watch)
            self._watches.add(watch)
            watch.rearm()
        try:
            for watch in standing:
                await self._until(watch.armed(), watch.path, self._deadline())
        except BaseException:
            for watch in standing:
                watch.cancel()
            raise
        return list(standing)

    def _arm(self, start: Callable[[], AsyncResult], done: Callable[[AsyncResult], None]) -> None:
        """For watches: starts the call as soon as the window has room."""
        self._waiting_arms.append((start, done))
        self._start_arms()

    def _start_arms(self) -> None:
        while self._waiting_arms and self._in_flight < MAX_IN_FLIGHT and self._connected:
            start, done = self._waiting_arms.popleft()
            self._in_flight += 1
            self.submit(start, done)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _settler(future: "asyncio.Future[AsyncResult]") -> Callable[[AsyncResult], None]:
    def settle(result: AsyncResult) -> None:
        if not future.done():
            future.set_result(result)

    return settle


def _stop(client: "Client") -> None:
    """In a worker thread: stops the client and closes its sockets."""
    try:
        client.stop()
    except Exception as error:
        logger.warning("Failed to close the ZooKeeper session: %s", error)
    # If it was stopped before, `stop` returns at once while its thread may still run; `close` fails
    # until that has ended.
    deadline = monotonic() + STOP_TIMEOUT_SECONDS
    while True:
        try:
            client.close()
        except Exception as error:
            if monotonic() < deadline:
                sleep(0.01)
                continue
            logger.warning("Failed to close the ZooKeeper client: %s", error)
        return
