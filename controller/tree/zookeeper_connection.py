"""The connection of kazoo to one server, with the deadlines and the patience of Java's client.

kazoo waits a whole session timeout for one host, takes a request that it sent as a sign that the
server lives, and gives up for good when one server refuses the credentials. Here

* the hosts share what is left of the session: connect, TLS and the first response of each address
  have the timeout divided by the number of hosts, as in `ClientCnxn`;
* a server from which nothing arrived for two thirds of the session timeout is left for another one,
  while the session still lives;
* a refusal ends a client that has never been connected, when no other host took it; later it is a
  lost connection like others, and so is one that is lost during the login;
* the client is connected when it has authenticated, not before.

All of this runs in kazoo's connection thread.
"""

import logging
import queue
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import ForceRetryError

from ottla.controller.tree.zookeeper_errors import sentence

logger = logging.getLogger("ottla.zookeeper")

READ_SHARE = 2 / 3
"""The part of the session timeout that a server may be silent, as in Java's client: the last third
is for finding another one."""
MIN_CONNECT_SECONDS = 1.0
"""For one address, when little of the session is left: less fails on a slow link."""

Address = tuple[str, int]


class Waits(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Opens kazoo's sockets and waits for them. Without `make_context` the connections are plain;
    a new context for each makes a renewed certificate be used from the next connection on. With
    `unix_path` they are to that socket, whatever the host."""

    def __init__(
        self,
        make_context: Callable[[], ssl.SSLContext] | None = None,
        unix_path: str = "",
    ) -> None:
        super().__init__()
        self._make_context = make_context
        self._unix_path = unix_path
        self._socket: socket.socket | None = None
        self._name = ""
        self._silence_seconds = 0.0
        self._deadline = 0.0  # something has to arrive before
        self.heard_at = monotonic()
        """When the last bytes of a server arrived."""

    def allow(self, name: str, seconds: float) -> None:
        """The next connection, to the server `name`, has to be complete in this time."""
        self._name, self._socket = name, None
        self._silence_seconds = 0.0
        self._deadline = monotonic() + seconds

    def established(self, silence_seconds: float) -> None:
        """From now on the server may be silent for so long."""
        self._silence_seconds = silence_seconds
        self._heard()

    def _heard(self) -> None:
        self.heard_at = monotonic()
        if self._silence_seconds:
            self._deadline = self.heard_at + self._silence_seconds

    def create_connection(self, address: Address, hostname: str, **_: Any) -> socket.socket:
        if self._unix_path:
            self._socket = self._open_unix()
            return self._socket
        opened = socket.create_connection(address, self._left())
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._make_context is not None:
                context = self._make_context()
                opened.settimeout(self._left())
                opened = context.wrap_socket(opened, server_hostname=hostname)
        except BaseException:
            opened.close()
            raise
        self._socket = opened
        return opened

    def _open_unix(self) -> socket.socket:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(self._left())
            opened.connect(self._unix_path)
        except BaseException:
            opened.close()
            raise
        return opened

    def _left(self) -> float:
        left = self._deadline - monotonic()
        if left <= 0:
            raise ConnectionDropped(f"{self._name} does not respond")
        return left

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        server = self._socket
        if server is None or server not in readers:
            return self._select(readers, writers, others, timeout)
        if isinstance(server, ssl.SSLSocket) and server.pending():
            # Decrypted already, with the record before: the descriptor is not readable for it.
            more = [each for each in readers if each is not server]
            return [server, *self._select(more, [], [], 0)[0]], [], []
        left = max(self._deadline - monotonic(), 0.0)
        found = self._select(readers, [], [], left if timeout is None else min(timeout, left))[0]
        if server not in found and monotonic() >= self._deadline:
            # Unless it came while this process was not running.
            if not self._select([server], [], [], 0)[0]:
                raise ConnectionDropped(f"{self._name} does not respond")
            found = [server, *found]
        if server in found:
            self._heard()
        return found, [], []

    def _select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        found: tuple[list[Any], list[Any], list[Any]]
        found = super().select(readers, writers, others, timeout)
        return found


class Connection(ConnectionHandler):  # type: ignore[misc]
    """`connect_seconds` is for all hosts together, until a server has agreed to a session timeout.
    `was_connected`: whether a client of the same broker has been connected before."""

    client: "Client"
    handler: Waits

    def __init__(
        self,
        client: "Client",
        sasl: dict[str, Any] | None,
        connect_seconds: float,
        was_connected: bool,
    ) -> None:
        super().__init__(client, client._conn_retry.copy(), client.logger, sasl)
        self.problem = ""
        """Why the last attempt to connect failed, for a person."""
        self._told: set[str] = set()  # a few for each host, until one of them is connected
        self._connect_seconds = connect_seconds
        self.session_seconds = 0.0
        """The session timeout that a server agreed to; 0 before the first one."""
        self._was_connected = was_connected
        self._was_refused = False

    def _connect_loop(self, retry: Any) -> Any:
        """Try each host once."""
        hosts = random.sample(self.client.hosts, len(self.client.hosts))
        self._was_refused = False
        for at, (host, port) in enumerate(hosts):
            share = self._share(len(hosts), len(hosts) - at)
            addresses = self._addresses(host, port, share)
            for address in addresses:
                if self.client._stopped.is_set():
                    return STOP_CONNECTING
                self.handler.allow(f"{host}:{port}", share / len(addresses))
                if self._connect_attempt(host, address, port, retry) is STOP_CONNECTING:
                    return STOP_CONNECTING
        if self._was_refused and not self._was_connected:
            self.client.state = (
                KazooState.SUSPENDED
            )  # else kazoo tells nobody: it was never connected
            self.client._session_callback(KeeperState.AUTH_FAILED)
            return STOP_CONNECTING
        raise ForceRetryError("no host has taken the connection")

    def _share(self, hosts: int, untried: int) -> float:
        """The seconds for the next host."""
        if not self.session_seconds:
            return self._connect_seconds / hosts
        usual = self.session_seconds / hosts
        left = (self.handler.heard_at + self.session_seconds - monotonic()) / untried
        return usual if left <= 0 else min(usual, max(left, MIN_CONNECT_SECONDS))

    def _addresses(self, host: str, port: int, seconds: float) -> list[str]:
        """Asked each time, as a name may move; a name server that hangs costs no more than a host
        that does."""
        found: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                rows = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
                found.put([str(row[4][0]) for row in rows])
            except (OSError, UnicodeError) as error:
                found.put(error)

        self.handler.spawn(look_up)
        try:
            answer = found.get(timeout=seconds)
        except queue.Empty:
            answer = TimeoutError("the name server does not respond")
        if isinstance(answer, list):
            return random.sample(answer, len(answer))
        self._failed(f"{host} cannot be resolved: {answer}")
        return []

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        where = f"{host}:{port}"
        try:
            with self.client.hold_connected():
                timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except (AuthFailedError, SessionClosedRequireSaslError) as error:
            if isinstance(error.__cause__, ConnectionDropped):  # in the login; kazoo takes it so
                text = (
                    f"{where} closed the connection during the SASL login; ZooKeeper before 3.5 "
                    f"does so where it refuses the user or the password"
                )
                self._failed(text)
                raise ConnectionDropped(text) from error
            self._was_refused = True
            if not self._was_connected:
                self.client._reset_session()  # it began at the server that refused
            text = f"{where} refused the credentials of this broker ({sentence(error)})"
            self._failed(text)
            raise ConnectionDropped(text) from error
        except SessionExpiredError:
            raise
        except Exception as error:
            plain = (ConnectionDropped, self.handler.timeout_exception)
            if not isinstance(error, plain) or isinstance(error.__context__, ssl.SSLError):
                self.problem = f"{where}: {sentence(error)}"  # kazoo logs it
            if isinstance(error, (ConnectionDropped, self.handler.timeout_exception)):
                raise
            raise ConnectionDropped(f"{where}: {sentence(error)}") from error
        self._was_connected = True
        self.problem = ""
        self._told.clear()
        return timeouts

    def _failed(self, problem: str) -> None:
        self.problem = problem
        if problem not in self._told:
            self._told.add(problem)
            logger.warning("Failed to connect to ZooKeeper: %s", problem)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        response = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self._agreed(response[0].time_out / 1000)
        return response

    def _agreed(self, session_seconds: float) -> None:
        if session_seconds <= 0:  # the session has expired
            return
        wanted = self.client._session_timeout / 1000
        if session_seconds not in (wanted, self.session_seconds):
            logger.warning(
                "ZooKeeper limits the session timeout to %g s, not the %g s of "
                "zookeeper.session.timeout.ms; its limits are minSessionTimeout and "
                "maxSessionTimeout",
                session_seconds,
                wanted,
            )
        self.session_seconds = session_seconds
        self.handler.established(session_seconds * READ_SHARE)


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client with a `Connection`; the other arguments are kazoo's."""

    handler: Waits
    _connection: Connection

    def __init__(
        self,
        hosts: str,
        *,
        connect_seconds: float,
        was_connected: bool,
        make_context: Callable[[], ssl.SSLContext] | None,
        sasl: dict[str, Any] | None,
        unix_path: str = "",
        **options: Any,
    ) -> None:
        super().__init__(hosts, handler=Waits(make_context, unix_path), **options)
        self._connection = Connection(self, sasl, connect_seconds, was_connected)
        self._holds = False
        self._held: Any = None

    @property
    def problem(self) -> str:
        """Why there is no connection, for a person; empty if there is one."""
        return self._connection.problem

    @property
    def session_timeout_ms(self) -> int:
        """The value that the server accepted."""
        return round(self._connection.session_seconds * 1000)

    def hold_connected(self) -> "_Held":
        return _Held(self)

    def _session_callback(self, state: Any) -> None:
        if self._holds and state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
            self._held = state
        else:
            super()._session_callback(state)


class _Held:
    """Keeps back that the client is connected until it has authenticated, and for ever if that
    fails."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client._holds, self._client._held = True, None

    def __exit__(self, kind: object, *_: object) -> None:
        client = self._client
        client._holds = False
        if kind is None and client._held is not None:
            client._session_callback(client._held)
