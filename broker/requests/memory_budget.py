"""One account of the memory that clients make the broker use, so that no load ends the process.

A `MemoryBudget` has five pools. Each is a share of the memory that the process may use, less what
it uses for itself, or a setting:

- *small requests*: frames of up to 64 KiB, and what is read ahead of a connection;
- *large requests*: longer frames, counted with their whole length before they are received;
- *responses*: what is being built by APIs whose responses may be long, and what clients have not
  read yet;
- *metadata*: the same of Metadata alone, which every client needs, so that it does not wait behind
  the long responses of a few APIs of administrators;
- *records*: batches while they are decompressed or converted in worker threads.

A part of the requests' memory is the reserve of brokers and controllers: while clients use all of
the rest, their requests are still read.

Who waits. Every use of a pool is a `Lease`. A caller that gets none waits in its pool: its
connection is not read, or its request is parked, and nothing is closed because it waits. Whenever
a lease ends, the pool hands leases to those that wait, one to each client in turn; none of them
asks again by a timer. The first whose turn it is keeps its turn until it fits, so that large ones
are not overtaken for ever, and newcomers wait behind it. One lease alone may be larger than the
pool, so that what is allowed gets through.

Fairness. A client is its principal, or its address while it has none: an address says little about
who is behind it. A client that has leases gets another one only while all its leases are not more
than a share of what is free, so that others find room whatever it does; one that has none may take
all that is free. A client that waits for its own share delays no other one.

Small requests pass large ones. While large requests wait, or small ones use their pool, connections
are read in pieces of `SHORT_BYTES`: a request that fits is handled, of one that does not fit no
more is in memory until it has a lease.

Who is closed. A lease whose request is being received, or whose response is not read, may be held
by a client that does neither. `stalled` names those that made no progress for `SILENCE_SECONDS` or
`STALL_SECONDS` while others wait for the same memory. A frame that is admitted gets all of its
memory, so it can be received to its end whatever others do: there is no deadlock, and a slow client
makes progress.

Loop thread only. Nothing here waits: a check and the change that depends on it are one call.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ottla.broker.requests.request_context import ANONYMOUS, Principal
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.net.connection import Connection
    from ottla.broker.requests.request_context import RequestConnection, RequestContext

Client = Principal | str
Resume = Callable[["Lease"], None]

# A frame above this does not fit into one read of a connection.
LARGE_BYTES = 65536

# While memory is short a connection is read in pieces of this: a Metadata, a heartbeat, a Fetch of
# a usual consumer or follower fit. It bounds what ten thousand connections can hold to 40 MB.
SHORT_BYTES = 4096

# So long a client may read nothing of a response while others wait for the memory that it holds.
# The broker's socket has a full buffer for it, so it is the client that does not read.
STALL_SECONDS = 5.0
# So long a client may send nothing of a request meanwhile. On a thin line with many connections TCP
# loses several retransmissions in a row, and waits twice as long after each.
SILENCE_SECONDS = 5.0
# Less than this in that time is nothing: a modem sends more.
LEAST_PROGRESS_BYTES = 4096
# And after this time a request that is not complete is not waited for by its client either: it is
# Kafka's delivery.timeout.ms, four times request.timeout.ms.
REQUEST_SECONDS = 120.0

# How many leases are handed out in one go, of a few microseconds each.
GRANTS_AT_ONCE = 64

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
# What such a response is taken to be at least: the next one may be longer than the last ones.
LEAST_RESPONSE_BYTES = 1 << 20
# Metadata is made of parts that are encoded already, and every client needs it.
LEAST_METADATA_BYTES = 64 << 10
# The objects of which a response is made take several times its bytes.
BUILDING = 4

# Requests that brokers send to each other: they may use the reserve.
_OF_BROKERS = frozenset(
    (
        ApiKey.FETCH,
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ALTER_PARTITION,
    )
)

UNLIMITED = sys.maxsize


def client_of(connection: RequestConnection) -> Client:
    """The principal of a client, or its address if it has none."""
    principal = connection.principal
    return connection.client_host if principal is ANONYMOUS else principal


class Lease:
    """Memory of a pool that a client uses; `release` exactly once, `resize` before it."""

    __slots__ = ("began_at", "client", "marked_at", "marked_bytes", "pool", "size")

    def __init__(self, pool: Pool, client: Client, size: int) -> None:
        self.pool = pool
        self.client = client
        self.size = size
        # The last progress that `MemoryBudget.stalled` has seen.
        self.began_at = self.marked_at = 0.0
        self.marked_bytes = -1

    def resize(self, size: int) -> None:
        """Use more or less, without a check."""
        self.pool.count(self.client, size - self.size)
        shrinks, self.size = size < self.size, size
        if shrinks and self.pool.waiting:
            self.pool.offer()

    def release(self) -> None:
        """Give all of it back; those that wait may get it now."""
        self.resize(0)


class Pool:
    """Memory of one kind, and who waits for it."""

    __slots__ = (
        "_is_offering",
        "_is_taken",
        "_used_by",
        "_waiters",
        "client_limit",
        "defer",
        "limit",
        "name",
        "share",
        "used",
        "waiting",
    )

    def __init__(self, name: str, share: int = 1) -> None:
        """`share`: a client may hold one part in so many of what is free."""
        self.name = name
        self.share = share
        self.limit = UNLIMITED
        #: Of one client, whatever is free (ottla.address.request.max.bytes).
        self.client_limit = UNLIMITED
        #: With what needs no lease.
        self.used = 0
        self.waiting = 0
        #: Runs a callback in a later iteration of the loop.
        self.defer: Callable[[Callable[[], None]], object] | None = None
        self._used_by: dict[Client, int] = {}
        # The clients in the order of their turns, each with those that wait in their order.
        self._waiters: OrderedDict[Client, OrderedDict[object, tuple[int, Resume]]] = OrderedDict()
        self._is_taken = False  # the first one of the turns waits for room
        self._is_offering = False

    @property
    def clients(self) -> dict[Client, int]:
        """Bytes of the leases by client."""
        return self._used_by

    def lease(self, client: Client, size: int) -> Lease | None:
        """A lease, or None when the caller has to `wait`."""
        if self._is_taken or not (self._fits(size) and self._is_fair(client, size)):
            return None
        self.count(client, size)
        return Lease(self, client, size)

    def wait(self, waiter: object, client: Client, size: int, resume: Resume) -> None:
        """Call `resume` with a lease, once, when there is one. A waiter waits once at most."""
        waiters = self._waiters.get(client)
        if waiters is None:
            waiters = self._waiters[client] = OrderedDict()
        waiters[waiter] = (size, resume)
        self.waiting += 1
        if not self._is_taken and self._is_fair(client, size):
            self._is_taken = True

    def forget(self, waiter: object, client: Client) -> bool:
        """The waiter is gone. Returns whether it waited."""
        waiters = self._waiters.get(client)
        if waiters is None or waiters.pop(waiter, None) is None:
            return False
        self.waiting -= 1
        if not waiters:
            del self._waiters[client]
        self.offer()  # those behind it may fit
        return True

    async def leased(self, client: Client, size: int) -> Lease:
        """A lease, after those that wait. The caller, a task, bounds how long it holds it."""
        lease = self.lease(client, size)
        if lease is None:
            future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
            self.wait(future, client, size, lambda found: _resolve(future, found))
            try:
                lease = await future
            except asyncio.CancelledError:
                if not self.forget(future, client) and future.done() and not future.cancelled():
                    future.result().release()
                raise
        return lease

    def offer(self) -> None:
        """Hand out leases to those that wait, in turn; also after the limit has changed."""
        if self._is_offering:
            return
        self._is_offering = True
        try:
            for _ in range(GRANTS_AT_ONCE):
                if not self._hand_out_one():
                    return
        finally:
            self._is_offering = False
        if self.defer is not None and self.waiting:
            self.defer(self.offer)

    def clear(self) -> None:
        """Forget all that wait; tasks that do are cancelled."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if isinstance(waiter, asyncio.Future):
                    waiter.cancel()
        self._waiters.clear()
        self.waiting = 0
        self._is_taken = False

    def _hand_out_one(self) -> bool:
        self._is_taken = False
        clients = self._waiters
        # Those that wait for their own share have leases: there are not many of them.
        for _ in range(len(clients)):
            client, waiters = next(iter(clients.items()))
            waiter, (size, resume) = next(iter(waiters.items()))
            if not self._is_fair(client, size):
                clients.move_to_end(client)
                continue
            if not self._fits(size):
                self._is_taken = True
                return False
            del waiters[waiter]
            self.waiting -= 1
            if waiters:
                clients.move_to_end(client)
            else:
                del clients[client]
            self.count(client, size)
            resume(Lease(self, client, size))
            return True
        return False

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or not self._used_by

    def _is_fair(self, client: Client, size: int) -> bool:
        held = self._used_by.get(client)
        if held is None:
            return True
        return held + size <= self.client_limit and held <= (self.limit - self.used) // self.share

    def is_waited_for(self, client: Client) -> bool:
        """Whether somebody waits for what `client` holds: because the pool is full, or another
        connection of the client for its share."""
        return self._is_taken or client in self._waiters

    def count(self, client: Client, size: int) -> None:
        """A client uses so much more, or less; without a check."""
        self.used += size
        held = self._used_by.get(client, 0) + size
        if held:
            self._used_by[client] = held
        else:
            self._used_by.pop(client, None)


def _resolve(future: asyncio.Future[Lease], lease: Lease) -> None:
    if future.done():  # cancelled in this iteration of the loop
        lease.release()
    else:
        future.set_result(lease)


class MemoryBudget:
    """The pools, and the rules of requests and responses. One for all connections of a loop."""

    __slots__ = (
        "_unread",
        "large",
        "max_frame_bytes",
        "metadata",
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
        self.reserve = Pool("requests of brokers")
        # A response is often the only one of its client. Those that have several leave more room.
        self.responses = Pool("responses", share=4)
        self.metadata = Pool("metadata responses", share=4)
        self.records = Pool("records")
        #: A longer frame is refused, so that one client cannot take all of the pool.
        self.max_frame_bytes = UNLIMITED
        #: Connections that receive a frame with a lease.
        self.received: dict[Connection, Lease] = {}
        self._unread: dict[Connection, Lease] = {}
        #: Connections that were closed because they made no progress.
        self.stalled_total = 0

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (
            *(self.small, self.large, self.reserve),
            *(self.responses, self.metadata, self.records),
        )

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are received or handled."""
        return self.small.used + self.large.used + self.reserve.used

    @property
    def request_limit(self) -> int:
        """The limit of `request_bytes`, 0 without one."""
        limit = self.small.limit + self.large.limit + self.reserve.limit
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
        self.large.limit = requests - self.small.limit - self.reserve.limit
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
        return self.small.used >= self.small.limit or self.large.waiting > 0

    def admit(
        self, sender: Connection, api_key: int, size: int, *, of_broker: bool, resume: Resume
    ) -> Lease | None:
        """A lease for a frame that is received in part, or None: `resume` is called with one."""
        client = client_of(sender)
        pool = self.large if size > LARGE_BYTES else self.small
        lease = pool.lease(client, size)
        if lease is None and (of_broker or api_key in _OF_BROKERS):
            pool = self.reserve
            lease = pool.lease(client, size)
        if lease is None:
            pool.wait(sender, client, size, resume)
        return lease

    def forget(self, sender: Connection) -> None:
        """A connection that may wait is closed."""
        client = client_of(sender)
        for pool in (self.small, self.large, self.reserve):
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
        # Else it would wait until nobody has an unread response.
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
        self, connection: Connection, size: int, now: float, context: RequestContext | None = None
    ) -> None:
        """So much of its responses a client has not read; it has just read some, or begun. Below 0
        when nothing waits for it any more. `context`: the request in flight."""
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
        lease.marked_at = now
        lease.resize(size)

    def unread_lease(self, connection: Connection) -> Lease | None:
        """The memory of the responses that a client has not read."""
        return self._unread.get(connection)

    # clients that make no progress ---------------------------------------------------------------

    def stalled(self, now: float) -> Iterator[tuple[Connection, Pool]]:
        """Connections that make no progress and hold what others wait for.

        To be called every second or so; the caller closes them. `now` is in monotonic seconds."""
        if self.small.waiting or self.large.waiting or self.reserve.waiting:
            for connection, lease in list(self.received.items()):
                if _is_stalled(lease, connection.received_bytes, now) and (
                    lease.pool.is_waited_for(lease.client)
                ):
                    yield connection, lease.pool
        for connection, lease in list(self._unread.items()) if self._has_waiters else ():
            if now - lease.marked_at >= STALL_SECONDS:
                for held in connection.held_leases():
                    if held.pool.is_waited_for(held.client):
                        yield connection, held.pool
                        break

    @property
    def _has_waiters(self) -> bool:
        return any(pool.waiting for pool in self.pools)


def _is_stalled(lease: Lease, received: int, now: float) -> bool:
    if lease.marked_bytes < 0:
        lease.began_at = now
    elif received - lease.marked_bytes < LEAST_PROGRESS_BYTES:
        return now - lease.marked_at >= SILENCE_SECONDS
    elif now - lease.began_at >= REQUEST_SECONDS:
        return True
    lease.marked_bytes = received
    lease.marked_at = now
    return False
