"""The network server: its listeners, their connections, and the end of both."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.net.connection import READ_BYTES, Connection
from ottla.broker.net.descriptors import Descriptors
from ottla.broker.net.large_frames import LargeFrames
from ottla.broker.net.listener import Listener, ListenError, SocketSettings, bind
from ottla.broker.net.services import ListenerFacts, NetworkServices
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.broker.requests.request_channel import Principal, RequestChannel
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.runtime.timer import DelayQueue

if TYPE_CHECKING:
    import ssl

    from ottla.broker.runtime.wheel import TimerTask
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.sasl.session import NewSession

logger = logging.getLogger("ottla.net")


class NetworkServer:
    """Opens listeners and closes their connections. Loop thread only.

    Order of use: `add_listener` for each (binds at once, so that a port in use is known before
    anything else starts), `start`, then `stop_accepting`, `drain`, `close`.
    """

    def __init__(
        self,
        channel: RequestChannel,
        timer: DelayQueue,
        worker_pool: WorkerPool,
        *,
        limits: ConnectionLimits | None = None,
        sockets: SocketSettings | None = None,
        request_max_bytes: int = 104857600,
        max_idle_ms: int = 600_000,
        large_frames: LargeFrames | None = None,
        authentication_timeout_ms: int = 30_000,
        security_log: "SecurityLog | None" = None,
    ) -> None:
        """`request_max_bytes`: socket.request.max.bytes. `max_idle_ms`: connections.max.idle.ms,
        not positive for never. `authentication_timeout_ms`: ottla.authentication.timeout.ms. Cold
        pages of log files are read in `worker_pool`. `security_log` gets logins by certificates."""
        self.statistics = NetworkStatistics()
        self.limits = limits if limits is not None else ConnectionLimits()
        self._sockets = sockets if sockets is not None else SocketSettings()
        self._request_max_bytes = request_max_bytes
        self._max_idle_ms = max_idle_ms
        self._authentication_timeout_ms = authentication_timeout_ms
        self._large_frames = large_frames if large_frames is not None else LargeFrames()
        self._security_log = security_log
        self._channel = channel
        self._timer = timer
        self._worker_pool = worker_pool
        self._listeners: dict[str, Listener] = {}
        #: The second socket of a listener, on a port that is shared with other processes.
        self._bootstrap: dict[str, Listener] = {}
        #: Removed, with connections that are still open; another one may have the name by now.
        self._removed: list[Listener] = []
        self._started = False
        self._services: NetworkServices | None = None
        self._reaper: TimerTask | None = None
        self._relief: TimerTask | None = None

    def add_listener(
        self,
        name: str,
        host: str,
        port: int,
        *,
        security_protocol: str = "PLAINTEXT",
        limits: ListenerLimits | None = None,
        tls_context: "ssl.SSLContext | None" = None,
        principal_of_certificate: Callable[[bytes], Principal] | None = None,
        new_session: "NewSession | None" = None,
        first_frame_max_bytes: int = 524288,
    ) -> int:
        """Bind a listener; port 0 picks a free one. Returns the port. Raises ListenError.

        SSL and SASL_SSL need a `tls_context`. `principal_of_certificate` gets the client's
        certificate in DER (empty if none) and returns the principal.
        SASL_... need `new_session`, which authenticates a connection; until it has, a frame takes
        `first_frame_max_bytes` at most (sasl.server.max.receive.size).

        Connections wait in the backlog until `start`; after it they are accepted at once.
        """
        services = self._services
        if services is None:
            services = self._services = NetworkServices(
                asyncio.get_running_loop(),
                self._channel,
                self._timer,
                self._worker_pool,
                self.statistics,
                READ_BYTES,
                self._large_frames,
                self._security_log,
            )
        if security_protocol.endswith("SSL") and tls_context is None:
            raise ListenError(f"Listener {name} has the protocol {security_protocol} but no keys.")
        sock = bind(name, host, port, self._sockets)
        facts = ListenerFacts(
            name,
            security_protocol=security_protocol,
            new_session=new_session,
            request_max_bytes=self._request_max_bytes,
            first_frame_max_bytes=first_frame_max_bytes,
            tls_context=tls_context,
            of_brokers=limits is not None and limits.protected,
            principal_of_certificate=principal_of_certificate,
        )
        listener = self._listeners[name] = self._listener(sock, facts, limits or ListenerLimits())
        if self._started:
            listener.start()
        return listener.port

    def add_bootstrap_port(self, name: str, host: str, port: int) -> None:
        """Accept connections of a listener on one more port, which the other workers of this
        machine serve as well. Raises ListenError."""
        sock = bind(name, host, port, self._sockets, shared=True)
        listener = self._listeners[name]
        second = self._bootstrap[name] = self._listener(sock, listener.facts, listener.limits)
        if self._started:
            second.start()

    def _listener(
        self, sock: socket.socket, facts: ListenerFacts, limits: ListenerLimits
    ) -> Listener:
        assert self._services is not None
        return Listener(
            sock,
            facts,
            self._services,
            self._sockets,
            self.limits,
            limits,
            self._make_room,
            self._close_unknown,
        )

    def remove_listener(self, name: str) -> None:
        """Close a listening socket now, and its connections after `REMOVAL_MS`: the response to the
        request that removed the listener may be on its way on one of them."""
        for listeners in (self._listeners, self._bootstrap):
            if name in listeners:
                listener = listeners.pop(name)
                listener.close()
                self._removed.append(listener)
                self._timer.schedule(REMOVAL_MS, partial(self._forget_listener, listener))

    def _forget_listener(self, listener: Listener) -> None:
        for connection in list(listener.connections):
            connection.close("its listener was removed")
        self._removed.remove(listener)

    def renew_tls(self, name: str, context: "ssl.SSLContext") -> None:
        """New connections of a listener get this context; those that are open stay."""
        self._listeners[name].facts.tls_context = context

    def renew_authentication(
        self,
        name: str,
        principal_of_certificate: Callable[[bytes], Principal] | None,
        new_session: "NewSession | None",
        first_frame_max_bytes: int,
    ) -> None:
        """New connections of a listener authenticate so, as in `add_listener`; those that are open
        stay."""
        facts = self._listeners[name].facts
        facts.principal_of_certificate = principal_of_certificate
        facts.new_session = new_session
        facts.first_frame_max_bytes = first_frame_max_bytes

    def start(self) -> None:
        """Begin to accept on all listeners."""
        self._started = True
        for listener in self._all_listeners:
            listener.start()
        if self._reaper is None:
            if self._max_idle_ms > 0:
                self._schedule_reaper()
            self._schedule_relief()

    @property
    def listeners(self) -> dict[str, Listener]:
        return self._listeners

    @property
    def _all_listeners(self) -> list[Listener]:
        """The listeners, their second sockets, and those that were removed."""
        return [*self._listeners.values(), *self._bootstrap.values(), *self._removed]

    @property
    def connections(self) -> list[Connection]:
        """All open connections."""
        return [c for listener in self._all_listeners for c in listener.connections]

    def descriptors(self) -> Descriptors:
        """The descriptors in use, and what is reserved; with at least one listener."""
        assert self._services is not None
        return self._services.descriptors.state(replaceable=self._oldest_unknown() is not None)

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay open."""
        for listener in self._all_listeners:
            listener.close()

    async def drain(self, timeout_ms: int) -> int:
        """Wait until no request is in flight, at most `timeout_ms`. Returns how many still are.

        A fetch that waits for records does not count: another one would follow it, and its client
        loses nothing."""
        deadline = monotonic() + timeout_ms / 1000
        while busy := sum(
            connection.in_flight and not connection.waits_for_records
            for connection in self.connections
        ):
            if monotonic() >= deadline:
                return busy
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        return 0

    def close(self) -> None:
        """Close everything now."""
        self.stop_accepting()
        for task in (self._reaper, self._relief):
            if task is not None:
                task.cancel()
        for connection in self.connections:
            connection.close("the broker is stopping")

    def leave_to_parent(self) -> None:
        """Close the copies of the sockets that a forked child has. The loop, which is the parent's,
        and the clients do not hear of it; nothing here may be used after it."""
        for listener in self._all_listeners:
            listener.leave_to_parent()

    def _make_room(self) -> None:
        """Close the client connection that has been idle longest: a broker connected above
        max.connections, and connections of brokers have priority (KIP-612)."""
        if self.limits.open <= self.limits.max_connections:
            return
        clients = [
            connection
            for listener in self._all_listeners
            if not listener.limits.protected
            for connection in listener.connections
        ]
        if clients:
            idle_longest = min(clients, key=lambda connection: connection.last_active)
            idle_longest.close("max.connections is reached and a broker connected")

    def _close_unknown(self) -> bool:
        """Close the oldest connection whose client has not authenticated, or not sent a request,
        for `GRACE_SECONDS`; False when there is none. Called when all places are taken."""
        oldest = self._oldest_unknown()
        if oldest is None:
            return False
        self.statistics.idle_closed += 1
        oldest.close("no place is left, and its client has not authenticated")
        return True

    def _oldest_unknown(self) -> Connection | None:
        moment = monotonic() - GRACE_SECONDS
        oldest = (listener.oldest_unknown() for listener in self._all_listeners)
        unknown = (each for each in oldest if each is not None and each.opened_at < moment)
        return min(unknown, key=lambda connection: connection.opened_at, default=None)

    def _schedule_reaper(self) -> None:
        # Often enough that no connection stays longer than a tenth beyond its time.
        interval_ms = max(self._max_idle_ms // 10, 10)
        self._reaper = self._timer.schedule(interval_ms, self._reap)

    def _reap(self) -> None:
        """Close the connections that have been idle for connections.max.idle.ms."""
        try:
            moment = monotonic() - self._max_idle_ms / 1000
            for connection in self.connections:
                if connection.is_idle_since(moment):
                    self.statistics.idle_closed += 1
                    connection.close("idle for connections.max.idle.ms")
        finally:
            self._schedule_reaper()

    def _schedule_relief(self) -> None:
        interval_ms = min(RELIEF_INTERVAL_MS, max(self._authentication_timeout_ms // 4, 10))
        self._relief = self._timer.schedule(interval_ms, self._relieve)

    def _relieve(self) -> None:
        """Let the memory of requests go round, and close clients that hold what others wait for.

        A frame's memory is reserved when its size is known, as in Kafka. There, a few clients that
        announce big requests and send nothing shut out all others until they are found idle.
        """
        try:
            self._close_stalled()
            self._close_unauthenticated()
            if self._services is not None and self._services.descriptors.is_used():
                self._restore_reserve()
        finally:
            self._schedule_relief()

    def _close_unauthenticated(self) -> None:
        """Close connections that have not authenticated within the time for it."""
        moment = monotonic() - self._authentication_timeout_ms / 1000
        for listener in self._all_listeners:
            if not listener.facts.requires_authentication:
                continue
            for connection in list(listener.connections):
                if not connection.authenticated and connection.opened_at < moment:
                    self.statistics.idle_closed += 1
                    connection.close("not authenticated within ottla.authentication.timeout.ms")

    def _restore_reserve(self) -> None:
        """Close connections of clients because logs or other files took reserved descriptors: those
        whose client is unknown, then those that have been idle longest."""
        assert self._services is not None
        moment = monotonic() - IDLE_SECONDS
        idle = [
            connection
            for listener in self._all_listeners
            if not listener.limits.protected
            for connection in listener.connections
            if connection.is_idle_since(moment)
        ]
        idle.sort(key=lambda connection: (connection.is_known, connection.last_active))
        for connection in idle[: self._services.descriptors.reserved]:
            self.statistics.idle_closed += 1
            connection.close("the broker is short of descriptors")

    def _close_stalled(self) -> None:
        memory = self._channel.memory
        for connection, pool in memory.relieve(monotonic()):
            memory.stalled_total += 1
            assert self._services is not None
            if self._services.log_limiter.allows(connection.client_host):
                logger.warning(
                    "%r makes no progress while others wait for the memory that it holds (%s, see "
                    "docs/limits.md): closing the connection",
                    connection,
                    pool.name,
                    extra={"peer": connection.client_host, "listener": connection.listener_name},
                )
            connection.close("it holds memory that other clients wait for")


# A client that connects authenticates and sends a request within less.
GRACE_SECONDS = 1.0

# When descriptors are short, connections that were silent for this time are closed: clients connect
# again when they need to.
IDLE_SECONDS = 2.0

# How often to look for clients that hold memory others wait for.
RELIEF_INTERVAL_MS = 1000

# Long enough for the response to the request that removed a listener.
REMOVAL_MS = 500

# Shutting down is rare: looking 100 times a second is simple and costs nothing that matters.
DRAIN_POLL_SECONDS = 0.01
