"""Quotas of clients: how much one user or client id may produce, fetch, request and change.

Mirrors Kafka's client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-257, KIP-599). A quota is set
for a user, for a client id, for both together, or as the default of each of these.
The most specific one counts:

    1. user, client id             4. default user, client id           7. client id
    2. user, default client id     5. default user, default client id   8. default client id
    3. user                        6. default user

One for a pair (1, 2, 4, 5) counts each pair of user and client id by itself; one for users alone
(3, 6) counts all clients of a user together; one for client ids alone (7, 8) counts all users of a
client id together. A client over its quota gets its response at once, with
the throttle time in it, and its connection is muted for so long.

Times are milliseconds on any one clock. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan, nan
from typing import TYPE_CHECKING

from ottla.broker.quotas.connection_quotas import UNLIMITED
from ottla.broker.quotas.rate import Rate, TokenBucket, forget_idle
from ottla.protocol.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from ottla.broker.quotas.connection_quotas import ConnectionLimits
    from ottla.broker.requests.request_channel import RequestContext
    from ottla.protocol.message import Message

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# The default entity, in znode paths and here.
DEFAULT = "<default>"

# Users, clients and their rates remembered at once. Beyond it, those that did nothing for a whole
# window are forgotten as others come; Kafka forgets them after an hour.
MAX_REMEMBERED = 10_000

# Who a rate belongs to: user and client id, "" where all of them count together; or the tags that
# a class of the installation gives a client (`ottla.broker.quotas.quota_callback`).
Entity = tuple[str, ...]


class QuotaTable:
    """The limits that were set for one kind of quota, and which of them counts for whom."""

    __slots__ = ("_found", "_limits", "has_limits")

    def __init__(self) -> None:
        #: Whether any client has a limit. Read for each request.
        self.has_limits = False
        self._limits: dict[Entity, float] = {}  # as it was set; "" for not named
        self._found: dict[Entity, tuple[float, Entity] | None] = {}

    def set(self, user: str, client_id: str, limit: float | None) -> None:
        """Set or (None) remove a limit for a user, a client id or both; "" leaves one out."""
        if limit is None:
            self._limits.pop((user, client_id), None)
        else:
            self._limits[user, client_id] = limit
        self.has_limits = bool(self._limits)
        self._found.clear()

    def find(self, user: str, client_id: str) -> tuple[float, Entity] | None:
        """The limit that counts for a client, and whom it is counted for; None: no limit."""
        key = (user, client_id)
        try:
            return self._found[key]
        except KeyError:
            if len(self._found) >= MAX_REMEMBERED:
                self._found.clear()
            found = self._found[key] = self._look_up(user, client_id)
            return found

    # Where a bound is derived from the limit before anything is recorded.
    find_again = find

    def forget(self) -> None:
        """Look everything up again: the limits may have changed."""
        self._found.clear()

    def _look_up(self, user: str, client_id: str) -> tuple[float, Entity] | None:
        limits = self._limits
        both = (user, client_id)
        for entity, counted_for in (
            ((user, client_id), both),
            ((user, DEFAULT), both),
            ((user, ""), (user, "")),
            ((DEFAULT, client_id), both),
            ((DEFAULT, DEFAULT), both),
            ((DEFAULT, ""), (user, "")),
            (("", client_id), ("", client_id)),
            (("", DEFAULT), ("", client_id)),
        ):
            limit = limits.get(entity)
            if limit is not None:
                return limit, counted_for
        return None


class ClientQuota:
    """One kind of quota: a rate for each client that has a limit."""

    def __init__(
        self,
        table: QuotaTable | None = None,
        *,
        window_count: int = 11,
        window_ms: int = 1000,
        max_throttle_ms: int = 2**31 - 1,
    ) -> None:
        """`window_count` and `window_ms`: quota.window.num and quota.window.size.seconds."""
        self.table = QuotaTable() if table is None else table
        self.throttled_total = 0
        self.throttle_ms_total = 0
        self._window_count = window_count
        self._window_ms = window_ms
        self._max_throttle_ms = max_throttle_ms
        self._rates: dict[Entity, Rate] = {}

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count what a client did. Returns for how many milliseconds it must be silent, 0 if it
        is within its limit or has none."""
        if not self.table.has_limits:
            return 0
        found = self.table.find(user, client_id)
        if found is None:
            return 0
        limit, entity = found
        rate = self._rate(entity, now_ms)
        rate.record(value, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self._max_throttle_ms)
        if throttle_ms:
            self.throttled_total += 1
            self.throttle_ms_total += throttle_ms
        return throttle_ms

    def undo(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Take back what was recorded and not done: a throttled fetch gets an empty response."""
        found = self.table.find(user, client_id) if self.table.has_limits else None
        if found is not None:
            self._rate(found[1], now_ms).record(-value, now_ms)

    def max_at_once(self, user: str, client_id: str) -> float:
        """The most that may be done at once without being throttled for certain: the bound of
        one fetch. Infinity for clients without a limit."""
        found = self.table.find_again(user, client_id) if self.table.has_limits else None
        if found is None:
            return float("inf")
        return found[0] * (self._window_count - 1) * self._window_ms / 1000

    def rates(self, now_ms: int) -> dict[Entity, float]:
        """The present rate of every client that has a limit, for metrics."""
        return {entity: rate.per_second(now_ms) for entity, rate in self._rates.items()}

    def _rate(self, entity: Entity, now_ms: int) -> Rate:
        rate = self._rates.get(entity)
        if rate is None:
            if len(self._rates) >= MAX_REMEMBERED:
                forget_idle(self._rates, now_ms)
            rate = Rate(window_count=self._window_count, window_ms=self._window_ms)
            self._rates[entity] = rate
        return rate


class MutationQuota:
    """Topics and partitions created and deleted a second, by token buckets (KIP-599)."""

    def __init__(
        self,
        table: QuotaTable | None = None,
        *,
        window_count: int = 11,
        window_ms: int = 1000,
    ) -> None:
        """controller.quota.window.num and controller.quota.window.size.seconds: a bucket holds
        as many tokens as the limit allows in all windows together."""
        self.table = QuotaTable() if table is None else table
        self.throttled_total = 0
        self.throttle_ms_total = 0
        self._seconds = window_count * window_ms / 1000
        self._buckets: dict[Entity, TokenBucket] = {}

    def check(self, user: str, client_id: str, now_ms: int) -> int:
        """Milliseconds until the client may change something again; 0: it may now."""
        found = self.table.find(user, client_id) if self.table.has_limits else None
        if found is None:
            return 0
        limit, entity = found
        return self._throttled(self._bucket(entity).wait_ms(limit, limit * self._seconds, now_ms))

    def record(self, user: str, client_id: str, changes: int, now_ms: int) -> int:
        """Count changes, whether or not `check` allowed them. Returns the throttle time.

        Strict callers (versions with THROTTLING_QUOTA_EXCEEDED) check before each change;
        permissive ones (older versions) only record and throttle.
        """
        found = self.table.find(user, client_id) if self.table.has_limits else None
        if found is None:
            return 0
        limit, entity = found
        bucket = self._bucket(entity)
        bucket.take(changes, limit, limit * self._seconds, now_ms)
        return self._throttled(bucket.wait_ms(limit, limit * self._seconds, now_ms))

    def _throttled(self, throttle_ms: int) -> int:
        if throttle_ms:
            self.throttled_total += 1
            self.throttle_ms_total += throttle_ms
        return throttle_ms

    def _bucket(self, entity: Entity) -> TokenBucket:
        bucket = self._buckets.get(entity)
        if bucket is None:
            if len(self._buckets) >= MAX_REMEMBERED:
                self._buckets.clear()
            bucket = self._buckets[entity] = TokenBucket()
        return bucket


def _is_of_follower(request: Message | None) -> bool:
    """A fetch of a follower is exempt from the request quota, as other requests of brokers."""
    if not isinstance(request, FetchRequest):
        return False
    state = request.replica_state
    return request.replica_id >= 0 or (state is not None and state.replica_id >= 0)


class ClientQuotas:
    """All quotas of a broker. `apply` takes the settings of an entity, as the znodes hold them."""

    def __init__(
        self,
        *,
        window_count: int = 11,
        window_ms: int = 1000,
        mutation_window_count: int = 11,
        mutation_window_ms: int = 1000,
        connection_limits: ConnectionLimits | None = None,
        new_table: Callable[[str], QuotaTable] = lambda kind: QuotaTable(),
    ) -> None:
        """`new_table` makes the table of a kind: PRODUCE, FETCH, REQUEST, CONTROLLER_MUTATION."""
        windows = {"window_count": window_count, "window_ms": window_ms}
        self.produce = ClientQuota(new_table("PRODUCE"), **windows)
        self.fetch = ClientQuota(new_table("FETCH"), **windows)
        # KIP-124: the request quota throttles for a window at most.
        self.request = ClientQuota(new_table("REQUEST"), **windows, max_throttle_ms=window_ms)
        self.mutation = MutationQuota(
            new_table("CONTROLLER_MUTATION"),
            window_count=mutation_window_count,
            window_ms=mutation_window_ms,
        )
        self._connection_limits = connection_limits

    def limits_changed(self) -> None:
        """Look all limits up again."""
        for quota in (self.produce, self.fetch, self.request, self.mutation):
            quota.table.forget()

    def throttle_request(self, context: RequestContext) -> int:
        """Count the time that a request took, when its response is ready. Returns milliseconds.

        The quota is in percent of one thread, and this broker has one.
        """
        quota = self.request
        if not quota.table.has_limits or _is_of_follower(context.request):
            return 0
        percent = (context.local_done_at - context.dequeued_at) * 100
        now_ms = int(context.local_done_at * 1000)
        client_id = context.header.client_id or ""
        return quota.record(context.principal.name, client_id, percent, now_ms)

    def apply(self, entity_path: str, properties: Mapping[str, str]) -> list[str]:
        """Take the quotas of an entity: "users/alice", "users/<default>/clients/app",
        "clients/app", "ips/10.0.0.1". A quota that is missing in `properties` is removed.

        Returns the problems of values that are no limits; what they would limit is not allowed at
        all.
        """
        from urllib.parse import unquote

        names = entity_path.split("/")
        # Names are percent-encoded in paths. A user who is called "<default>" keeps the encoded
        # name here, which matches no user: the quota does not become that of all users.
        parts = {
            kind: name if unquote(name) == DEFAULT else unquote(name)
            for kind, name in zip(names[::2], names[1::2], strict=True)
        }
        problems: list[str] = []

        def limit(key: str) -> float | None:
            text = properties.get(key)
            found = None if text is None else _number(text)
            if found is None or found >= 0:  # NaN, which would limit nothing, is not
                return found
            problems.append(f"{key} is {text!r}, which is no limit")
            return 0.0

        if "ips" in parts:
            self._apply_ip(parts["ips"], limit(CONNECTION_CREATION_RATE))
            return problems
        user, client_id = parts.get("users", ""), parts.get("clients", "")
        for key, table in (
            (PRODUCER_BYTE_RATE, self.produce.table),
            (CONSUMER_BYTE_RATE, self.fetch.table),
            (REQUEST_PERCENTAGE, self.request.table),
            (CONTROLLER_MUTATION_RATE, self.mutation.table),
        ):
            table.set(user, client_id, limit(key))
        return problems

    def block(self, entity_path: str) -> None:
        """Allow nothing to the clients of an entity whose quotas are not known, until `apply`."""
        kinds = (
            *(PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE),
            *(CONTROLLER_MUTATION_RATE, CONNECTION_CREATION_RATE),
        )
        self.apply(entity_path, dict.fromkeys(kinds, "0"))

    def _apply_ip(self, ip: str, value: float | None) -> None:
        limits = self._connection_limits
        if limits is None:
            return
        rate = None if value is None else int(min(value, UNLIMITED))
        if ip == DEFAULT:
            limits.set_default_ip_creation_rate(rate)
        else:
            limits.set_ip_creation_rate(ip, rate)


def _number(text: str) -> float:
    """The number in the text of a znode, NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return nan


def limit_of(text: str) -> float:
    """The limit that DescribeClientQuotas shows for the text of a znode: the number, as Kafka, also
    if it is negative and allows nothing; 0, which is in force, for what is no number."""
    found = _number(text)
    return 0.0 if isnan(found) else found
