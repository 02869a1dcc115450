"""A listening socket: binding it, accepting connections, and what can go wrong with both."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ottla.broker.net.connection import Connection, plain_ip
from ottla.broker.quotas.connection_quotas import FULL_RETRY_MS, ConnectionLimits, ListenerLimits

if TYPE_CHECKING:
    from ottla.broker.net.services import ListenerFacts, NetworkServices
    from ottla.broker.runtime.timer import DelayQueue


logger = logging.getLogger("ottla.net")

# Connections accepted in one turn of the loop: a burst of them does not delay the others for long.
MAX_ACCEPTS = 64

# When the process or the machine is out of descriptors or memory, accepting pauses this long.
EXHAUSTED_PAUSE_MS = 1000

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """A listener could not be opened; the message names the address and the remedy."""


class PortInUse(ListenError):
    """Another process uses the port."""


class SocketSettings:
    """Socket options. -1 leaves a buffer's size to the operating system, which then adapts it."""

    __slots__ = ("backlog", "receive_buffer_bytes", "send_buffer_bytes")

    def __init__(
        self,
        *,
        send_buffer_bytes: int = 102400,
        receive_buffer_bytes: int = 102400,
        backlog: int = 50,
    ) -> None:
        self.send_buffer_bytes = send_buffer_bytes
        self.receive_buffer_bytes = receive_buffer_bytes
        self.backlog = backlog


def bind(
    listener_name: str, host: str, port: int, settings: SocketSettings, *, shared: bool = False
) -> socket.socket:
    """A bound and listening non-blocking socket. An empty host and :: mean all addresses of both
    families, as in Java, without IPv6 those of IPv4. Other processes of this user may bind a
    `shared` port, too, and each connection is accepted by one of them. Raises ListenError."""
    # Connections inherit SO_REUSEADDR, so that their ends do not keep the port from a restart.
    options = [socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if shared else [])]
    sock = _bound(listener_name, (host, port), settings, options)
    try:
        sock.listen(settings.backlog)
    except OSError as error:
        sock.close()
        raise _listen_error(listener_name, host, port, error) from None
    return sock


def reserve(listener_name: str, host: str, port: int) -> socket.socket:
    """A socket that only keeps a shared port for `bind`, whether or not a process listens on it.
    Raises ListenError, also if another program or another user has the port."""
    settings = SocketSettings()
    if port:
        _bound(listener_name, (host, port), settings, [socket.SO_REUSEADDR]).close()
    # Without SO_REUSEADDR: a program that does not share could take the port otherwise.
    return _bound(listener_name, (host, port), settings, [socket.SO_REUSEPORT])


def _bound(
    listener_name: str, where: tuple[str, int], settings: SocketSettings, options: Sequence[int]
) -> socket.socket:
    host, port = where
    try:
        family, address = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(
            f"Listener {listener_name} cannot use the address {_where(host, port)}: "
            f"{error.strerror or error}; "
            "write a host name or address of this machine in `listeners`."
        ) from None
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        if settings.receive_buffer_bytes > 0:
            # On the listening socket: the window is agreed on before a connection is accepted.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _listen_error(listener_name, host, port, error) from None
    return sock


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def _listen_error(listener_name: str, host: str, port: int, error: OSError) -> ListenError:
    kind = PortInUse if error.errno == errno.EADDRINUSE else ListenError
    return kind(_why_not(listener_name, _where(host, port), port, error))


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if host in ("", "::"):
        if socket.has_dualstack_ipv6():
            return socket.AF_INET6, ("::", port)
        return socket.AF_INET, ("0.0.0.0", port)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name with addresses of both families ("localhost"): IPv4, as clients expect.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _why_not(listener_name: str, where: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Listener {listener_name} cannot listen on {where}: another process uses that port; "
            "stop it (find it with `ss -ltnp`) or choose another port in `listeners`."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"Listener {listener_name} cannot listen on {where}: this machine does not have that "
            "address; use one of its own in `listeners`, and `advertised.listeners` for the "
            "address that clients see."
        )
    if error.errno in (errno.EACCES, errno.EPERM) and port < 1024:
        return (
            f"Listener {listener_name} cannot listen on {where}: ports below 1024 need special "
            "rights; choose a higher one in `listeners`."
        )
    return f"Listener {listener_name} cannot listen on {where}: {os.strerror(error.errno or 0)}."


class Listener:
    """Accepts the connections of one listening socket within the limits."""

    def __init__(
        self,
        sock: socket.socket,
        facts: ListenerFacts,
        services: NetworkServices,
        settings: SocketSettings,
        limits: ConnectionLimits,
        listener_limits: ListenerLimits,
        on_protected_connection: Callable[[], None],
        close_unknown: Callable[[], bool],
    ) -> None:
        """`on_protected_connection` is called when a listener with protected limits accepted a
        connection; `close_unknown` when there is no place, see `NetworkServer`."""
        self.facts = facts
        self.limits = listener_limits
        #: As they were accepted: they close in this order.
        self.connections: dict[Connection, None] = {}
        # In the same order, those that were not known when last checked.
        self._unknown: OrderedDict[Connection, None] = OrderedDict()
        self._on_protected_connection = on_protected_connection
        self._close_unknown = close_unknown
        self._sock = sock
        self._services = services
        self._settings = settings
        self._connection_limits = limits
        self._delayed_closes = DelayedCloses(services.timer)
        self._accepting = False
        self._closed = False
        self._on_closed = self._forget  # one bound method for all connections
        self._connection_class: type[Connection] = Connection
        if facts.tls_context is not None:
            from ottla.broker.net.tls import TlsConnection

            self._connection_class = TlsConnection

    @property
    def port(self) -> int:
        port: int = self._sock.getsockname()[1]
        return port

    def start(self) -> None:
        """Begin to accept."""
        if not self._closed and not self._accepting:
            self._accepting = True
            self._services.loop.add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        if not self._closed:
            self._pause()
            self._closed = True
            self._sock.close()
            self._delayed_closes.close_all()

    def leave_to_parent(self) -> None:
        """See `NetworkServer.leave_to_parent`."""
        for connection in self.connections:
            connection.leave_to_parent()
        if not self._closed:
            os.close(self._sock.detach())

    def oldest_unknown(self) -> Connection | None:
        """The oldest connection whose client is not known; it is not looked for among all."""
        unknown = self._unknown
        while unknown:
            connection = next(iter(unknown))
            if not connection.is_known:
                return connection
            del unknown[connection]  # it stays known
        return None

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._services.loop.remove_reader(self._sock.fileno())

    def _pause_for(self, milliseconds: int) -> None:
        self._pause()
        self._services.timer.schedule(milliseconds, self.start)

    def _accept(self) -> None:
        now_ms = int(monotonic() * 1000)
        services = self._services
        refused = False
        for _ in range(MAX_ACCEPTS):
            delay_ms = self._connection_limits.accept_delay_ms(self.limits, now_ms)
            if delay_ms > 0 and self._is_full and self._close_unknown():
                delay_ms = self._connection_limits.accept_delay_ms(self.limits, now_ms)
            if delay_ms > 0:
                self._pause_for(delay_ms)
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    # The connection broke before it was accepted.
                    logger.debug("listener %s: accept failed: %s", self.facts.name, error)
                    return
                if services.log_limiter.allows(f"accept {self.facts.name}"):
                    logger.error(
                        "listener %s cannot accept connections: %s; raise the limit of open "
                        "files (ulimit -n) or lower max.connections",
                        self.facts.name,
                        error.strerror,
                    )
                self._pause_for(EXHAUSTED_PAUSE_MS)
                return
            kept = self._keep_reserve(sock)
            if kept is None:
                refused = True
                continue
            self._open(kept, (plain_ip(address[0]), address[1]), now_ms)
        if refused:
            self._pause_for(FULL_RETRY_MS)

    @property
    def _is_full(self) -> bool:
        """Connections take all places that the settings allow, and one more is waiting."""
        limits = self._connection_limits
        if self.limits.open < self.limits.max_connections and (
            self.limits.protected or limits.open < limits.max_connections
        ):
            return False
        waiting = select.poll()
        waiting.register(self._sock.fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def _keep_reserve(self, sock: socket.socket) -> socket.socket | None:
        """The connection, or None: it is closed, for it would take one of the last descriptors. An
        unknown connection may be closed instead, whose number the new one then gets."""
        descriptors = self._services.descriptors
        protected = self.limits.protected
        if descriptors.has_room(sock.fileno(), protected=protected):
            return sock
        if self._close_unknown():
            moved = sock.dup()
            sock.close()
            if descriptors.has_room(moved.fileno(), protected=protected):
                return moved
            sock = moved
        sock.close()
        services = self._services
        services.statistics.connections_refused += 1
        if services.log_limiter.allows(f"descriptors {self.facts.name}"):
            logger.error(
                "listener %s refuses connections: %d of %d descriptors are reserved for logs and "
                "brokers, the others are in use; raise the limit of open files (ulimit -n) or set "
                "max.connections.per.ip",
                self.facts.name,
                services.descriptors.reserved,
                services.descriptors.limit,
            )
        return None

    def _open(self, sock: socket.socket, client: tuple[str, int], now_ms: int) -> None:
        services = self._services
        refusal = self._connection_limits.admit(self.limits, client[0], now_ms)
        if refusal is not None:
            self._delayed_closes.close(sock, refusal.close_after_ms)
            services.statistics.connections_refused += 1
            if services.log_limiter.allows(client[0]):
                logger.warning(
                    "listener %s refused a connection: %s",
                    self.facts.name,
                    refusal.reason,
                    extra={"peer": client[0], "listener": self.facts.name},
                )
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._settings.send_buffer_bytes > 0:
                size = self._settings.send_buffer_bytes
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            connection = self._connection_class(sock, client, self.facts, services, self._on_closed)
        except OSError as error:
            # The client closed it before it was set up.
            logger.debug("connection from %s broke while it was set up: %s", client[0], error)
            sock.close()
            self._connection_limits.released(self.limits, client[0])
            return
        services.statistics.connections_accepted += 1
        self.connections[connection] = None
        self._unknown[connection] = None
        connection.start()
        if self.limits.protected:
            self._on_protected_connection()

    def _forget(self, connection: Connection) -> None:
        """A connection of this listener has closed."""
        self._services.statistics.connections_closed += 1
        if connection.sasl is not None:
            connection.sasl.close()
        self.connections.pop(connection, None)
        self._unknown.pop(connection, None)
        self._connection_limits.released(self.limits, connection.client_host)


# Of a listener: each holds a descriptor. A client that waits for the end of its connection has
# one; those above the bound, of clients that open many side by side, are closed at once.
MAX_DELAYED = 100


class DelayedCloses:
    """Refused connections, over the rate of their address, which stay open and unread for a while.

    A client whose connection is closed at once connects again at once. Kafka's acceptor delays the
    close too (`DelayedCloseSocket`). Loop only.
    """

    def __init__(self, timer: DelayQueue) -> None:
        self._timer = timer
        # In the order in which they wait.
        self._sockets: dict[socket.socket, None] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def close(self, sock: socket.socket, delay_ms: int) -> None:
        """Close the connection after the delay, or at once if it is 0 or too many wait."""
        if delay_ms <= 0 or len(self._sockets) >= MAX_DELAYED:
            sock.close()
            return
        self._sockets[sock] = None
        self._timer.schedule(delay_ms, partial(self._close, sock))

    def close_all(self) -> None:
        """Close what still waits."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _close(self, sock: socket.socket) -> None:
        self._sockets.pop(sock, None)
        sock.close()
