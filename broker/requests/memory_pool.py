"""Memory of one kind that clients share: the leases, the waiting clients and their order.

Every use of a pool is a `Lease`. A caller without a lease waits in its pool. Whenever a lease ends,
the pool hands leases to waiting callers; no caller polls by a timer. The order:

- One lease for each client in turn.
- For one client, one lease for each of its lines in turn. A line has requests of similar length, so
  short ones pass long ones. Requests that were set aside have a line of their own, so they do not
  delay new ones, most of which arrive at once, and are not delayed by them.
- The first request in turn keeps its turn until it fits: smaller ones do not overtake it for ever,
  and newcomers wait behind it.

A lease may be larger than the pool if it is the only one, so that every allowed request is served.

A client with leases gets another one only while they take no more than a share of the free memory,
so memory is left for others. A client without leases may take all that is free. A client that waits
for its own share delays no other client.

Loop thread only. Nothing here waits: a check and the change that depends on it are one call.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable

from ottla.broker.requests.request_context import Principal

Client = Principal | str
Resume = Callable[["Lease"], None]

UNLIMITED = sys.maxsize

# Leases that are granted in one turn, at a few microseconds each.
GRANTS_AT_ONCE = 64

# The line of requests that were set aside; that of others is the number of bits of their length.
_SET_ASIDE = 0

_Line = OrderedDict[object, tuple[int, Resume]]


class Lease:
    """Memory of a pool that a client uses; `release` exactly once, `resize` before it."""

    __slots__ = ("active_at", "client", "has_more", "has_passed", "marked_bytes", "pool", "size")

    def __init__(self, pool: Pool, client: Client, size: int) -> None:
        self.pool = pool
        self.client = client
        self.size = size
        #: The time and the position of the last progress that `MemoryBudget.relieve` saw; below 0
        #: before its first check.
        self.active_at = 0.0
        self.marked_bytes = -1
        #: More has come of a request that was set aside.
        self.has_more = False
        #: It went on before the one whose turn it was, which happens once.
        self.has_passed = False

    def resize(self, size: int) -> None:
        """Use more or less, without a check."""
        self.pool.count(self.client, size - self.size)
        shrinks, self.size = size < self.size, size
        if shrinks:
            for pool in (self.pool, self.pool.twin):
                if pool is not None and pool.waiting:
                    pool.offer()

    def join(self, other: Lease) -> None:
        """Use what `other` has, too, which ends."""
        self.size += other.size
        other.size = 0

    def move(self, pool: Pool) -> None:
        """Use memory of another pool instead, without a check."""
        old, self.pool = self.pool, pool
        pool.count(self.client, self.size)  # first: others may get what the old one has free now
        old.count(self.client, -self.size)
        if old.waiting:
            old.offer()

    def release(self) -> None:
        """Give all of it back; those that wait may get it now."""
        self.resize(0)


class Pool:
    """Memory of one kind, and who waits for it."""

    __slots__ = (
        "_is_offering",
        "_used_by",
        "_waiters",
        "client_limit",
        "defer",
        "held",
        "is_taken",
        "limit",
        "name",
        "share",
        "twin",
        "used",
        "waiting",
    )

    def __init__(self, name: str, share: int = 1) -> None:
        """`share`: a client may hold at most 1/`share` of the free memory."""
        self.name = name
        self.share = share
        self.limit = UNLIMITED
        #: The limit of one client, also while more is free (ottla.address.request.max.bytes).
        self.client_limit = UNLIMITED
        #: Another pool whose leases count for the limit of a client, too.
        self.twin: Pool | None = None
        #: With what needs no lease.
        self.used = 0
        #: Of leases alone.
        self.held = 0
        self.waiting = 0
        #: Runs a callback in a later iteration of the loop.
        self.defer: Callable[[Callable[[], None]], object] | None = None
        self._used_by: dict[Client, int] = {}
        # The clients in the order of their turns, each with its lines in the order of theirs.
        self._waiters: OrderedDict[Client, OrderedDict[int, _Line]] = OrderedDict()
        #: The pool is full: the first one of the turns waits for memory of any client.
        self.is_taken = False
        self._is_offering = False

    @property
    def clients(self) -> dict[Client, int]:
        """Bytes of the leases by client."""
        return self._used_by

    def lease(self, client: Client, size: int) -> Lease | None:
        """A lease, or None when the caller has to `wait`."""
        if self.is_taken or client in self._waiters:
            return None
        if not (self._fits(size) and self._is_fair(client, size)):
            return None
        self.count(client, size)
        return Lease(self, client, size)

    def wait(
        self,
        waiter: object,
        client: Client,
        size: int,
        resume: Resume,
        *,
        was_set_aside: bool = False,
    ) -> None:
        """Call `resume` with a lease, once, when there is one. A waiter waits once at most."""
        is_behind = client in self._waiters
        lines = self._waiters.setdefault(client, OrderedDict())
        line = _SET_ASIDE if was_set_aside else size.bit_length()
        lines.setdefault(line, OrderedDict())[waiter] = (size, resume)
        self.waiting += 1
        if not self.is_taken and not is_behind and self._is_fair(client, size):
            self.is_taken = True

    def has(self, waiter: object, client: Client) -> bool:
        """Whether it waits."""
        return any(waiter in line for line in self._waiters.get(client, {}).values())

    def forget(self, waiter: object, client: Client) -> bool:
        """The waiter is gone. Returns whether it waited."""
        for number, line in self._waiters.get(client, {}).items():
            if line.pop(waiter, None) is not None:
                self._remove_empty(client, number)
                self.offer()  # those behind it may fit
                return True
        return False

    def _remove_empty(self, client: Client, number: int) -> None:
        """A waiter has left a line of a client."""
        self.waiting -= 1
        lines = self._waiters[client]
        if not lines[number]:
            del lines[number]
            if not lines:
                del self._waiters[client]

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
        for lines in self._waiters.values():
            for line in lines.values():
                for waiter in line:
                    if isinstance(waiter, asyncio.Future):
                        waiter.cancel()
        self._waiters.clear()
        self.waiting = 0
        self.is_taken = False

    def _hand_out_one(self) -> bool:
        self.is_taken = False
        clients = self._waiters
        # Clients that wait for their own share have leases: there are not many of them.
        for _ in range(len(clients)):
            client, number, waiter = self._first()
            size, _ = clients[client][number][waiter]
            if not self._is_fair(client, size):
                clients.move_to_end(client)
                continue
            if not self._fits(size):
                self.is_taken = True
                return False
            self._hand_out(client, number, waiter)
            return True
        return False

    def _hand_out(self, client: Client, number: int, waiter: object) -> None:
        lines = self._waiters[client]
        size, resume = lines[number].pop(waiter)
        lines.move_to_end(number)
        self._waiters.move_to_end(client)
        self._remove_empty(client, number)
        self.count(client, size)
        resume(Lease(self, client, size))

    def hand_out_to(self, waiter: object, client: Client, own: int) -> bool:
        """Hand a lease out of turn to one that was set aside with `own` bytes, if it waits and
        there is room, or nothing but it: it may be longer than the pool."""
        line = self._waiters.get(client, OrderedDict()).get(_SET_ASIDE)
        if line is None or waiter not in line:
            return False
        if not self._fits(line[waiter][0]) and self.held != own:
            return False
        self._hand_out(client, _SET_ASIDE, waiter)
        return True

    def _first(self) -> tuple[Client, int, object]:
        """The client whose turn it is."""
        client, lines = next(iter(self._waiters.items()))
        number, line = next(iter(lines.items()))
        return client, number, next(iter(line))

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or not self._used_by

    def _is_fair(self, client: Client, size: int) -> bool:
        held = self._used_by.get(client, 0)
        beside = 0 if self.twin is None else self.twin._used_by.get(client, 0)
        if (held or beside) and held + beside + size > self.client_limit:
            return False
        return not held or held <= (self.limit - self.used) // self.share

    def is_waited_for(self, client: Client) -> bool:
        """Whether memory of `client` is waited for: the pool is full, or another connection of the
        client waits for the client's share."""
        return self.is_taken or client in self._waiters

    def most_aside(self, client: Client) -> int:
        """The bytes of `client`, or of all clients if the pool is full, that requests that were set
        aside may hold: half, and not more than leaves room for the request in turn."""
        if not self.is_taken:
            free = self.limit - self.used + self._used_by.get(client, 0)
            return free // (self.share + 1) // 2
        first, number, waiter = self._first()
        size, _ = self._waiters[first][number][waiter]
        return min(self.limit // 2, max(self.limit - size, 0))

    def count(self, client: Client, size: int) -> None:
        """Add `size` bytes, which may be negative, to the use of a client, without a check."""
        self.used += size
        self.held += size
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
