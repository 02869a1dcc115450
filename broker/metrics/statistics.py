"""Statistics of the broker: plain numbers, kept where they are counted.

Counting must cost next to nothing on the request path, so these are objects with integer and
float fields and no locks. `broker/metrics/exposition.py` renders them when they are scraped. Loop
thread only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext

# Upper bounds of the buckets of request times, in seconds: from a fast tiny request to a fetch
# that waits out a long max_wait_ms. The last bucket, not listed, is everything above.
TIME_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)

# A turn of the event loop longer than this delays all other work and counts as a stall.
STALL_SECONDS = 0.05


# The stages of a request, in their order, as Kafka's RequestMetrics have them.
STAGES = ("queue", "local", "remote", "throttle", "response", "send")

_FIRST_BOUND = TIME_BUCKETS[0]


class HistogramReading(NamedTuple):
    """A histogram when it is scraped: observations up to each bound, not cumulative, and above the
    last one; and their sum."""

    buckets: list[int]
    total: float


class RequestStatistics:
    """One API's requests: how many of each version, and where their time went.

    The stages are Kafka's: in the request queue, in the handler (local), waiting for others
    (remote: purgatory, followers), throttled, encoding the response and waiting to send it
    (response), being sent. Most stages of most requests take less than the first bound: those are
    not counted one by one, `stage` adds them.
    """

    __slots__ = (
        "_local_buckets",
        "_queue_buckets",
        "_remote_buckets",
        "_response_buckets",
        "_send_buckets",
        "_throttle_buckets",
        "api_name",
        "by_version",
        "errors",
        "local_seconds",
        "queue_seconds",
        "remote_seconds",
        "request_bytes",
        "response_seconds",
        "send_seconds",
        "throttle_seconds",
        "total_buckets",
        "total_seconds",
    )

    def __init__(self, api_name: str) -> None:
        self.api_name = api_name
        self.by_version: dict[int, int] = {}
        self.errors = 0  # handlers that failed with an exception
        self.request_bytes = 0
        self.queue_seconds = 0.0
        self.local_seconds = 0.0
        self.remote_seconds = 0.0
        self.throttle_seconds = 0.0
        self.response_seconds = 0.0
        self.send_seconds = 0.0
        self.total_seconds = 0.0
        size = len(TIME_BUCKETS) + 1
        self.total_buckets = [0] * size
        self._queue_buckets = [0] * size
        self._local_buckets = [0] * size
        self._remote_buckets = [0] * size
        self._throttle_buckets = [0] * size
        self._response_buckets = [0] * size
        self._send_buckets = [0] * size

    def record(self, api_version: int, request: RequestContext, sent_at: float) -> None:
        """Count a request whose response was sent at `sent_at` (monotonic seconds)."""
        by_version = self.by_version
        by_version[api_version] = by_version.get(api_version, 0) + 1
        received_at = request.received_at
        dequeued_at = request.dequeued_at
        local_done_at = request.local_done_at
        responded_at = request.responded_at
        send_started_at = request.send_started_at
        seconds = dequeued_at - received_at
        self.queue_seconds += seconds
        if seconds > _FIRST_BOUND:
            self._queue_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        seconds = local_done_at - dequeued_at
        self.local_seconds += seconds
        if seconds > _FIRST_BOUND:
            self._local_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        if responded_at != local_done_at:
            seconds = responded_at - local_done_at
            self.remote_seconds += seconds
            if seconds > _FIRST_BOUND:
                self._remote_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        seconds = send_started_at - responded_at
        self.response_seconds += seconds
        if seconds > _FIRST_BOUND:
            self._response_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        seconds = sent_at - send_started_at
        self.send_seconds += seconds
        if seconds > _FIRST_BOUND:
            self._send_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        self.request_bytes += request.frame_bytes
        if request.throttle_time_ms:
            seconds = request.throttle_time_ms / 1000
            self.throttle_seconds += seconds
            self._throttle_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        seconds = sent_at - received_at
        self.total_seconds += seconds
        self.total_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1

    def record_failure(self, request: RequestContext, error: Exception) -> None:
        """Count a request whose handler failed with an exception; `record` follows, if it gets a
        response."""
        self.errors += 1

    @property
    def count(self) -> int:
        return sum(self.by_version.values())

    def total(self) -> HistogramReading:
        """The time from the last byte of a request to the last byte of its response."""
        return HistogramReading(list(self.total_buckets), self.total_seconds)

    def stage(self, stage: str) -> HistogramReading:
        """The time that requests spent in one of `STAGES`."""
        buckets: list[int] = list(getattr(self, f"_{stage}_buckets"))
        buckets[0] = self.count - sum(buckets[1:])
        return HistogramReading(buckets, getattr(self, f"{stage}_seconds"))


class NetworkStatistics:
    """All listeners of one server together."""

    __slots__ = (
        "authentications",
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "connections_closed",
        "connections_refused",
        "expired_sessions",
        "failed_authentications",
        "idle_closed",
        "protocol_errors",
        "sendfile_bytes",
        "wrong_protocol",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.sendfile_bytes = 0  # part of bytes_out that never passed through our memory
        self.connections_accepted = 0
        self.connections_closed = 0
        self.connections_refused = 0  # over a limit of connections
        self.idle_closed = 0
        self.authentications = 0  # by SASL, again ones counted too
        self.failed_authentications = 0
        self.expired_sessions = 0  # closed for not authenticating again (KIP-368)
        self.protocol_errors = 0
        self.wrong_protocol = 0  # HTTP, TLS or SSH on a Kafka port


class StallStatistics:
    """Turns of the loop longer than `STALL_SECONDS`, by what ran, if that is known."""

    __slots__ = ("by_name", "computing", "longest_seconds", "total")

    # The names come from our own code (APIs, timers, tasks), so they are few; this is for safety.
    MAX_NAMES = 200

    def __init__(self) -> None:
        self.total = 0
        # Those in which the loop's thread computed for that long. The others waited: for a disk, or
        # for a processor that other processes had.
        self.computing = 0
        self.longest_seconds = 0.0
        self.by_name: dict[str, int] = {}

    def record(self, name: str, seconds: float) -> None:
        self.total += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
        if name not in self.by_name and len(self.by_name) >= self.MAX_NAMES:
            name = "other"
        self.by_name[name] = self.by_name.get(name, 0) + 1


# One value of a metric with labels: the values of its labels, and the number.
Row = tuple[tuple[str, ...], float]

# A number, one for each set of label values, or an iterator of very many rows.
Reading = float | dict[tuple[str, ...], float] | Iterator[Row]

# Histograms by label values.
HistogramReadings = dict[tuple[str, ...], HistogramReading]


class Metric:
    """A metric of some part of the broker, read when it is scraped."""

    __slots__ = ("help", "kind", "labels", "name", "read")

    def __init__(
        self,
        name: str,
        help_text: str,
        kind: str,
        labels: tuple[str, ...],
        read: Callable[[], Reading | HistogramReadings],
    ) -> None:
        self.name = name
        self.help = help_text
        self.kind = kind  # "gauge", "counter" or "histogram"
        self.labels = labels
        self.read = read

    @property
    def exposed_name(self) -> str:
        """The name in the text: a counter has the suffix _total."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


class MetricsRegistry:
    """Where the parts of the broker register what they count. Names begin with "ottla_" and carry
    their unit, without Prometheus's "_total"."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        #: Metrics whose names are known only when they are read.
        self.families: list[Callable[[], Iterable[tuple[Metric, Reading]]]] = []
        #: What several metrics read is computed before them, in steps between which the event loop
        #: does other work.
        self.preparations: list[Callable[[], Iterator[None]]] = []

    def gauge(self, name: str, help_text: str, read: Reader, *labels: str) -> None:
        """Offer a value that goes up and down. With `labels`, `read` returns a dictionary from
        tuples of label values to numbers, or an iterator of such pairs if there may be thousands.
        """
        self.metrics.append(Metric(name, help_text, "gauge", labels, read))

    def counter(self, name: str, help_text: str, read: Reader, *labels: str) -> None:
        """Offer a value that only grows."""
        self.metrics.append(Metric(name, help_text, "counter", labels, read))

    def histogram(
        self, name: str, help_text: str, read: Callable[[], HistogramReadings], *labels: str
    ) -> None:
        """Offer times in seconds in the buckets of `TIME_BUCKETS`."""
        self.metrics.append(Metric(name, help_text, "histogram", labels, read))


Reader = Callable[[], Reading]


class Traffic(NamedTuple):
    """Counts since the start of the broker; bytes are those on all listeners."""

    received_bytes: int
    sent_bytes: int
    requests: int
