"""The account of the memory that clients make the broker use, so that no load ends the process.

A `MemoryBudget` has six pools. The limit of each is a setting, or a share of the memory that the
process may use, less the memory that it uses for itself:

- *small requests*: frames of up to 64 KiB, and bytes read ahead of a connection;
- *large requests*: longer frames, counted with their whole length before they are received;
- *quick requests*: long frames for which *large requests* has no room, and which arrive so fast
  that the memory is free again soon;
- *responses*: responses under construction of APIs whose responses may be long, and unread bytes;
- *metadata*: the same for Metadata alone. Every client needs it, so it does not wait behind the
  long responses of a few APIs of administrators;
- *records*: batches while they are decompressed or converted in worker threads.

A part of the memory for requests is the reserve of brokers and controllers: their requests are read
even if clients use all of the rest.

`ottla.broker.requests.memory_pool` decides who gets memory and who waits. The connection of a
waiting client is not read, or its request is parked; waiting closes no connection. A client is its
principal, or its address if it has none: several clients may share an address.

Small requests pass large ones. While large requests wait, or small ones use their pool, connections
are read in pieces of `SHORT_BYTES`: a request that fits is handled; of a longer one, no more is in
memory until it has a lease.

Requests that arrive fast pass slow ones. A large request that has to wait is not read, and its
bytes gather in the buffer of the socket. If they fill it at once, or within `HASTEN_MS`, the
request waits as well for memory that slow ones do not get, and uses what is free first. A slow
request keeps its memory for as long as its client needs to send it: many of them, behind one
address, would leave none for a long time.

Slow requests give up memory. A request gets the memory for all of it before it is received, so it
can be received to its end. While others wait, `relieve` sets aside requests that received nothing
in the last second, and slow ones: they keep the memory of the received bytes and free the rest. A
request that was set aside waits for a lease again when more of it arrives. So a slow client delays
others for a second or two, and announced bytes that are not sent cost nothing. Slow requests are
set aside only while the received bytes of such requests take a quarter of the memory or less: an
incomplete request is of no use. For the same reason a request of a client that holds nothing else
continues out of turn: no memory is freed before one is complete.

Connections close in two cases. If the received bytes of requests that were set aside take more than
half of the memory, connections that have been silent for `SILENCE_SECONDS` are closed, the longest
silence first, until it is half; if nothing but such requests is left and others still find no room,
those that have sent more and wait count as silent, too. A connection is also closed if its client
reads nothing of its responses for `STALL_SECONDS` while others wait for the same memory.

Loop thread only. Nothing here waits: a check and the change that depends on it are one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.requests.memory_pool import UNLIMITED, Client, Lease, Pool, Resume
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.net.connection import Connection
    from ottla.broker.requests.request_context import RequestConnection, RequestContext

# A frame above this does not fit into one read of a connection.
LARGE_BYTES = 65536

# A client that sends fast has so much of a request in the buffer of its socket: a quarter of the
# 200 KB that Linux gives for the default of socket.receive.buffer.bytes. It counts overhead, too.
QUICK_BYTES = 48 << 10
# A request that waits is looked at again: at 48 KiB in this time, a megabyte takes `SOON_LOOKS`.
HASTEN_MS = 200

# While memory is short a connection is read in pieces of this: a Metadata, a heartbeat, a Fetch of
# a usual consumer or follower fit. It bounds what ten thousand connections can hold to 40 MB.
SHORT_BYTES = 4096

# How long a client may read nothing of a response while others wait for the memory that it holds.
STALL_SECONDS = 5.0
# How long a client may send nothing of a request that was set aside, while the bytes received of it
# take the memory of others. TCP doubles its wait with each lost retransmission: this allows six.
SILENCE_SECONDS = 10.0
# A longer time between two looks is a stall of this process: it says nothing about clients.
LONGEST_LOOK_SECONDS = 2.0
# A request that is complete within this number of looks, at its present rate, is not set aside.
SOON_LOOKS = 4
# A request that would take more than a minute at its present rate counts as one that received
# nothing: most clients give up after half a minute (request.timeout.ms).
LATE_LOOKS = 60
# Fewer bytes than this, less than a packet, count as no progress.
LEAST_PROGRESS_BYTES = 1024

# Responses of these APIs grow with the cluster, not with the request.
LONG_RESPONSES = frozenset(
    (
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    )
)
# The least estimate of such a response: the next one may be longer than the last ones.
LEAST_RESPONSE_BYTES = 1 << 20
# Metadata is made of parts that are encoded already, and every client needs it.
LEAST_METADATA_BYTES = 64 << 10
# The objects of which a response is made take several times its bytes.
BUILDING = 4


def client_of(connection: RequestConnection) -> Client:
    """The principal of a client, or its address if it has none."""
    principal = connection.principal
    return connection.client_host if principal is ANONYMOUS else principal


class MemoryBudget:
    """The pools, and the rules of requests and responses. One for all connections of a loop."""

    __slots__ = (
        "_looked_at",
        "_unread",
        "_watched",
        "aside",
        "large",
        "max_frame_bytes",
        "metadata",
        "quick",
        "received",
        "records",
        "reserve",
        "responses",
        "small",
        "stalled_total",
    )

    def __init__(self) -> None:
        """Without limits, until `limit` is called."""
        self.small = Pool("small requests")
        self.large = Pool("large requests")
        self.quick = Pool("quick requests")
        self.large.twin, self.quick.twin = self.quick, self.large
        self.reserve = Pool("requests of brokers")
        # A response is often the only one of its client. Those that have several leave more room.
        self.responses = Pool("responses", share=4)
        self.metadata = Pool("metadata responses", share=4)
        self.records = Pool("records")
        #: A longer frame is refused, so that one client cannot take all of the pool.
        self.max_frame_bytes = UNLIMITED
        #: Connections that receive a frame with a lease of all of it.
        self.received: dict[Connection, Lease] = {}
        #: Requests with a lease of the received bytes only, which are not read until more arrives.
        self.aside: dict[Connection, Lease] = {}
        self._unread: dict[Connection, Lease] = {}
        #: Connections that were closed because they made no progress.
        self.stalled_total = 0
        self._looked_at = 0.0
        self._watched = 0.0  # seconds; those in which this process stood still do not count

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (
            *self._of_requests,
            *(self.responses, self.metadata, self.records),
        )

    @property
    def _of_requests(self) -> tuple[Pool, ...]:
        return self.small, self.large, self.quick, self.reserve

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are received or handled."""
        return sum(pool.used for pool in self._of_requests)

    @property
    def request_limit(self) -> int:
        """The limit of `request_bytes`, 0 without one."""
        limit = sum(pool.limit for pool in self._of_requests)
        return 0 if limit >= UNLIMITED else limit

    @property
    def used(self) -> int:
        """All that is counted."""
        return sum(pool.used for pool in self.pools)

    def limit(self, requests: int, responses: int, records: int) -> None:
        """Set the limits in bytes. Smaller ones end no lease: they are reached when some have
        ended."""
        self.small.limit = requests // 4
        self.reserve.limit = requests // 8
        self.quick.limit = requests // 4
        self.large.limit = requests - self.small.limit - self.reserve.limit - self.quick.limit
        self.metadata.limit = responses // 4
        self.responses.limit = responses - self.metadata.limit
        self.records.limit = records
        for pool in self.pools:
            if pool.waiting:
                pool.offer()

    def defer(self, defer: Callable[[Callable[[], None]], object] | None) -> None:
        """`defer` runs a callback in a later iteration of the loop."""
        for pool in self.pools:
            pool.defer = defer

    def clear(self) -> None:
        """Forget all that wait."""
        for pool in self.pools:
            pool.clear()

    # requests ---------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Read in short pieces."""
        return (
            self.small.used >= self.small.limit or self.large.waiting > 0 or self.quick.waiting > 0
        )

    def admit(
        self, sender: Connection, size: int, *, of_broker: bool, resume: Resume
    ) -> Lease | None:
        """A lease for a frame that is received in part, or None: `resume` is called with one.
        Those of brokers may use the reserve."""
        client = client_of(sender)
        pool = self.large if size > LARGE_BYTES else self.small
        lease = pool.lease(client, size)
        if lease is None and of_broker:
            pool = self.reserve
            lease = pool.lease(client, size)
        elif lease is None and pool is self.large:
            resume = partial(self._resume_once, sender, resume)
            if self._may_hasten(sender, size):
                lease = self._quick_lease(sender, size, resume)
        if lease is None:
            pool.wait(sender, client, size, resume)
        return lease

    def hasten(self, sender: Connection, size: int, resume: Resume) -> None:
        """Look again whether a large request that waits for a lease arrives fast."""
        client = client_of(sender)
        waits = self.large.has(sender, client) and not self.quick.has(sender, client)
        if waits and self._may_hasten(sender, size):
            resume = partial(self._resume_once, sender, resume)
            lease = self._quick_lease(sender, size, resume)
            if lease is not None:
                resume(lease)

    def _may_hasten(self, sender: Connection, size: int) -> bool:
        """Whether a request arrives fast. One that is longer than the pool waits for a large lease
        alone: with both pools in use it would exceed the memory for requests."""
        return size <= self.quick.limit and sender.arrives_fast(size)

    def _quick_lease(self, sender: Connection, size: int, resume: Resume) -> Lease | None:
        """A lease of quick memory, or None: the request waits for it, besides a large lease.
        Slow requests would not be set aside, and free memory not used, if it waited here alone."""
        client = client_of(sender)
        lease = self.quick.lease(client, size)
        if lease is None:
            self.quick.wait(sender, client, size, resume)
        return lease

    def _resume_once(self, sender: Connection, resume: Resume, lease: Lease) -> None:
        """A request has the first of the leases for which it waited."""
        self.forget(sender)
        resume(lease)

    def forget(self, sender: Connection) -> None:
        """A connection that may wait is closed."""
        client = client_of(sender)
        for pool in self._of_requests:
            if pool.waiting:
                pool.forget(sender, client)

    # responses --------------------------------------------------------------------------------

    def begin_response(self, context: RequestContext, resume: Resume) -> Lease | None:
        """A lease for a response that is about to be built, or None: `resume` is called with
        one."""
        client = client_of(context.connection)
        pool = self.response_pool(context)
        is_metadata = pool is self.metadata
        least = LEAST_METADATA_BYTES if is_metadata else LEAST_RESPONSE_BYTES
        size = max(context.route.response_bytes, least) * BUILDING
        # Otherwise it would wait until no client has an unread response.
        size = min(size, pool.limit // 2)
        lease = pool.lease(client, size)
        if lease is None:
            pool.wait(context, client, size, resume)
        return lease

    def response_pool(self, context: RequestContext | None) -> Pool:
        """The pool of the response to a request."""
        if context is not None and context.header.api_key == ApiKey.METADATA:
            return self.metadata
        return self.responses

    def set_unread(
        self, connection: Connection, size: int, context: RequestContext | None = None
    ) -> None:
        """So much of its responses a client has not read. Below 0 when nothing waits for it any
        more. `context`: the request in flight."""
        lease = self._unread.get(connection)
        if size < 0:
            if lease is not None:
                del self._unread[connection]
                lease.release()
            return
        if lease is None:
            lease = self._unread[connection] = Lease(
                self.response_pool(context), client_of(connection), 0
            )
        lease.resize(size)

    def unread_lease(self, connection: Connection) -> Lease | None:
        """The memory of the responses that a client has not read."""
        return self._unread.get(connection)

    # clients that make no progress ---------------------------------------------------------------

    def relieve(self, now: float) -> Iterator[tuple[Connection, Pool]]:
        """Give memory of those that make the least progress to those that wait. Yields connections
        to close, with the pool that others wait for.

        To be called every second or so. `now` is in monotonic seconds."""
        self._watched += min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self._looked_at = now
        for pool in self._of_requests:
            if pool.waiting:
                self._set_aside_slowest(pool)
                self._let_go_on(pool)
                yield from self._silent(pool)
        if any(pool.waiting for pool in self.pools):
            yield from self._not_reading()

    def _set_aside_slowest(self, pool: Pool) -> None:
        slowest: list[tuple[int, int, Connection, Lease]] = []
        for number, (connection, lease) in enumerate(self.received.items()):
            if lease.pool is not pool:
                continue
            came = connection.received_bytes - lease.marked_bytes
            if lease.marked_bytes < 0 or came >= LEAST_PROGRESS_BYTES:
                lease.active_at = self._watched
            if lease.marked_bytes >= 0:
                slowest.append((came, number, connection, lease))
            lease.marked_bytes = connection.received_bytes
        aside = _Aside(pool, self.aside)
        for came, _, connection, lease in sorted(slowest):
            if pool.is_waited_for(lease.client):
                filled = connection.filled_bytes
                left = lease.size - filled
                if came < max(LEAST_PROGRESS_BYTES, left // LATE_LOOKS) or (
                    came * SOON_LOOKS < left
                    and (aside.of(lease.client) + filled) * 2 <= pool.most_aside(lease.client)
                ):
                    connection.set_aside()
                    if lease.pool is pool:
                        aside.add(lease, filled)

    def _let_go_on(self, pool: Pool) -> None:
        """Hand out leases to requests that were set aside and wait for what such requests hold: of
        these nothing is given back before one is complete. One of each client that holds nothing
        else; while the pool is full, one of all."""
        aside = _Aside(pool, self.aside)
        if pool.is_taken and aside.total < pool.held:
            return
        for connection, lease in list(self.aside.items()):
            client = lease.client
            if (
                lease.pool is pool
                and lease.has_more
                and aside.clients.get(client) == pool.clients.get(client)
                and not (pool.is_taken and lease.has_passed)
            ):
                is_taken = pool.is_taken
                if pool.hand_out_to(connection, client, lease.size) and is_taken:
                    lease.has_passed = True
                    return

    def _silent(self, pool: Pool) -> Iterator[tuple[Connection, Pool]]:
        """Connections of requests that were set aside, the longest silence first, while the
        received bytes of such requests take too much memory; also those that wait to continue,
        once no other requests are left."""
        silent = [
            (lease.has_more, lease.active_at, number, connection)
            for number, (connection, lease) in enumerate(self.aside.items())
            if lease.pool is pool and self._watched - lease.active_at >= SILENCE_SECONDS
        ]
        aside = _Aside(pool, self.aside if silent else {})
        for _, _, _, connection in sorted(silent):
            lease = self.aside.get(connection)
            if lease is None or (lease.has_more and aside.total < pool.held):
                continue
            if pool.is_waited_for(lease.client) and (
                aside.of(lease.client) > pool.most_aside(lease.client)
            ):
                aside.add(lease, -lease.size)
                yield connection, pool

    def _not_reading(self) -> Iterator[tuple[Connection, Pool]]:
        for connection, lease in list(self._unread.items()):
            left = connection.unacknowledged_bytes
            if lease.marked_bytes < 0 or abs(left - lease.marked_bytes) >= LEAST_PROGRESS_BYTES:
                lease.marked_bytes = left
                lease.active_at = self._watched
            elif self._watched - lease.active_at >= STALL_SECONDS:
                for held in connection.held_leases():
                    if held.pool.is_waited_for(held.client):
                        yield connection, held.pool
                        break

    def set_aside(self, connection: Connection, filled: int) -> None:
        """A request keeps what was received of it, and gives back the memory for the rest. One that
        turned out to be slow leaves the memory of quick ones, if there is room elsewhere."""
        lease = self.aside[connection] = self.received.pop(connection)
        lease.resize(filled)
        if lease.pool is self.quick and self.large.used + filled <= self.large.limit:
            lease.move(self.large)

    def take_up(self, connection: Connection, size: int, resume: Resume) -> None:
        """More has come of a request that was set aside: call `resume` with a lease for the rest of
        it, now or later."""
        own = self.aside[connection]
        own.has_more = True
        lease = own.pool.lease(own.client, size)
        if lease is not None:
            resume(lease)
        else:
            own.pool.wait(connection, own.client, size, resume, was_set_aside=True)

    def go_on(self, connection: Connection, rest: Lease) -> None:
        """The rest of a request that was set aside is received."""
        lease = self.received[connection] = self.aside.pop(connection)
        lease.join(rest)
        lease.has_more = False
        lease.marked_bytes = -1


class _Aside:
    """The received bytes of the requests of a pool that were set aside."""

    def __init__(self, pool: Pool, leases: dict[Connection, Lease]) -> None:
        self._pool = pool
        self.total = 0
        self.clients: dict[Client, int] = {}
        for lease in leases.values():
            if lease.pool is pool:
                self.add(lease, lease.size)

    def add(self, lease: Lease, size: int) -> None:
        """Another request, or one less."""
        self.total += size
        self.clients[lease.client] = self.clients.get(lease.client, 0) + size

    def of(self, client: Client) -> int:
        """Bytes of a client, or of all if the pool is full."""
        return self.total if self._pool.is_taken else self.clients.get(client, 0)
