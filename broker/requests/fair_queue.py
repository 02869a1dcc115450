"""Fairness between clients: one request of each in turn, and expensive ones behind the others.

A client is a principal and an address, with all its connections: forty connections of one client
get as much of the event loop as one connection of another.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import Principal, RequestConnection, RequestContext

#: A request that takes longer is expensive; an append of a record takes a tenth of it.
EXPENSIVE_SECONDS = 0.001
#: This many expensive requests of a client and an API within `SOON_SECONDS` mark them. Fewer may be
#: normal for the client, or were interrupted by other processes.
MANY_EXPENSIVE = 8
SOON_SECONDS = 0.1
#: How long the mark stays after the last expensive request.
MARK_SECONDS = 1.0
#: Up to this many clients and APIs are marked, with 200 bytes each; then all marks are removed.
MAX_MARKS = 4096

Client = tuple["Principal", str]
Kind = tuple["Principal", str, int]


T = TypeVar("T")


class _ClientItems(deque[Any]):
    """The waiting items of one client, in order."""

    __slots__ = ("client_host", "principal")

    def __init__(self, principal: Principal, client_host: str) -> None:
        super().__init__()
        self.principal = principal
        self.client_host = client_host


class FairQueue(Generic[T]):
    """A queue that returns one item of each client in turn. Those of one client stay in order."""

    __slots__ = ("_clients", "_last", "_turns", "length")

    def __init__(self) -> None:
        self.length = 0
        # Only clients of which something waits; `_turns` begins with the one whose turn it is.
        self._clients: dict[Client, _ClientItems] = {}
        self._turns: deque[_ClientItems] = deque()
        # The client that was last looked up: usually many requests of one come together, and its
        # name takes longer to hash than all else here.
        self._last: _ClientItems | None = None

    def append(self, item: T, connection: RequestConnection) -> None:
        """`connection` is that of the item's client."""
        self._waiting(connection).append(item)

    def append_first(self, item: T, connection: RequestConnection) -> None:
        """Before the others of its client."""
        self._waiting(connection).appendleft(item)

    def _waiting(self, connection: RequestConnection) -> _ClientItems:
        self.length += 1
        waiting = self._last
        if (
            waiting is not None
            and waiting.client_host == connection.client_host
            and waiting.principal == connection.principal
        ):
            return waiting
        client = (connection.principal, connection.client_host)
        waiting = self._clients.get(client)
        if waiting is None:
            waiting = self._clients[client] = _ClientItems(*client)
            self._turns.append(waiting)
        self._last = waiting
        return waiting

    def pop(self) -> T:
        """The oldest item of the client whose turn it is; raises IndexError if there is none."""
        turns = self._turns
        waiting = turns[0]
        item: T = waiting.popleft()
        self.length -= 1
        if not waiting:
            turns.popleft()
            del self._clients[waiting.principal, waiting.client_host]
            if waiting is self._last:
                self._last = None
        elif len(turns) > 1:
            turns.rotate(-1)
        return item

    def clear(self) -> None:
        self._clients.clear()
        self._turns.clear()
        self._last = None
        self.length = 0


class ExpensiveRequests:
    """Marks clients by what their requests took. Times are monotonic seconds."""

    __slots__ = ("_counts", "marks")

    def __init__(self) -> None:
        #: Until when the requests of a client and an API are taken to be expensive.
        self.marks: dict[Kind, float] = {}
        # The begin of a period of `SOON_SECONDS`, and the expensive requests in it.
        self._counts: dict[Kind, tuple[float, int]] = {}

    def record(self, context: RequestContext, now: float) -> None:
        """A request took longer than `EXPENSIVE_SECONDS`."""
        kind = _kind(context)
        if kind in self.marks:
            self.marks[kind] = now + MARK_SECONDS
            return
        if len(self._counts) + len(self.marks) >= MAX_MARKS:
            self._counts.clear()
            self.marks.clear()
        began_at, count = self._counts.get(kind, (now, 0))
        if now - began_at > SOON_SECONDS:
            began_at, count = now, 0
        count += 1
        if count >= MANY_EXPENSIVE:
            self._counts.pop(kind, None)
            self.marks[kind] = now + MARK_SECONDS
        else:
            self._counts[kind] = (began_at, count)

    def includes(self, context: RequestContext) -> bool:
        """Whether a request that has just come in is one of a marked client."""
        kind = _kind(context)
        until = self.marks.get(kind)
        if until is None:
            return False
        if context.received_at < until:
            return True
        del self.marks[kind]
        return False


def _kind(context: RequestContext) -> Kind:
    connection = context.connection
    return (connection.principal, connection.client_host, context.route.entry.api_key)
