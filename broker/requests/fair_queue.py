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
EXPENSIVE_SECONDS = 0.0005
#: A client's second expensive request of an API within this time marks its requests of that API.
#: One alone was perhaps interrupted by another process.
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

    __slots__ = ("_last", "marks")

    def __init__(self) -> None:
        #: Until when the requests of a client and an API are taken to be expensive.
        self.marks: dict[Kind, float] = {}
        self._last: dict[Kind, float] = {}

    def record(self, context: RequestContext, now: float) -> None:
        """A request took longer than `EXPENSIVE_SECONDS`."""
        kind = _kind(context)
        last = self._last.get(kind)
        if len(self._last) >= MAX_MARKS:
            self._last.clear()
            self.marks.clear()
        self._last[kind] = now
        if last is not None and now - last < SOON_SECONDS:
            self.marks[kind] = now + MARK_SECONDS

    def includes(self, context: RequestContext) -> bool:
        """Whether a request that has just come in is one of a marked client."""
        kind = _kind(context)
        until = self.marks.get(kind)
        if until is None:
            return False
        if context.received_at < until:
            return True
        del self.marks[kind], self._last[kind]
        return False


def _kind(context: RequestContext) -> Kind:
    connection = context.connection
    return (connection.principal, connection.client_host, context.route.entry.api_key)
