"""Which request is next when many wait, and which clients' requests cost so much that they wait
behind others'.

A client is a principal and an address, with all its connections: forty connections of one client
get as much of the event loop as one connection of another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import Principal, RequestContext

#: A request that takes longer is expensive; an append of a record takes a tenth of it.
EXPENSIVE_SECONDS = 0.001
#: So many expensive requests of a client and an API within `SOON_SECONDS` mark them. Fewer are
#: perhaps those of a client that sends some, or were interrupted by other processes.
MANY_EXPENSIVE = 8
SOON_SECONDS = 0.1
#: How long the mark stays after the last expensive request.
MARK_SECONDS = 1.0
#: Marks of so many clients and APIs, with 200 bytes each; when there are more, all are removed.
MAX_MARKS = 4096

Client = tuple["Principal", str]
Kind = tuple["Principal", str, int]


class FairQueue:
    """Requests that wait, one of each client in turn. Those of one client stay in order."""

    __slots__ = ("_clients", "length")

    def __init__(self) -> None:
        self.length = 0
        self._clients: OrderedDict[Client, deque[RequestContext]] = OrderedDict()

    def append(self, context: RequestContext) -> None:
        self._waiting(context).append(context)

    def append_first(self, context: RequestContext) -> None:
        """Before the others of its client."""
        self._waiting(context).appendleft(context)

    def _waiting(self, context: RequestContext) -> deque[RequestContext]:
        self.length += 1
        client = (context.connection.principal, context.connection.client_host)
        waiting = self._clients.get(client)
        if waiting is None:
            waiting = self._clients[client] = deque()
        return waiting

    def pop(self) -> RequestContext:
        """The oldest request of the client whose turn it is; raises KeyError if there is none."""
        client, waiting = self._clients.popitem(last=False)
        context = waiting.popleft()
        if waiting:
            self._clients[client] = waiting
        self.length -= 1
        return context

    def clear(self) -> None:
        self._clients.clear()
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
