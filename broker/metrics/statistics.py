"""What the broker counts about itself: plain numbers, kept where they are counted.

Counting must cost next to nothing on the request path, so these are objects with integer and
float fields and no locks. `broker/observability/http_endpoint.py` folds them into Prometheus
metrics when they are scraped; nothing here imports the Prometheus library. Loop thread only.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol

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


class RequestTimes(Protocol):
    """When a request reached each point of its way, in monotonic seconds, and what it took."""

    received_at: float
    dequeued_at: float
    local_done_at: float
    responded_at: float
    send_started_at: float
    throttle_time_ms: int
    frame_bytes: int


class RequestStatistics:
    """One API's requests: how many of each version, and where their time went.

    The split is Kafka's: in the request queue, in the handler (local), waiting for others
    (remote: purgatory, followers), throttled, waiting to be sent, being sent.
    """

    __slots__ = (
        "api_name",
        "by_version",
        "errors",
        "local_seconds",
        "queue_seconds",
        "remote_seconds",
        "request_bytes",
        "response_queue_seconds",
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
        self.response_queue_seconds = 0.0
        self.send_seconds = 0.0
        self.total_seconds = 0.0
        self.total_buckets = [0] * (len(TIME_BUCKETS) + 1)

    def record(self, api_version: int, request: RequestTimes, sent_at: float) -> None:
        """Count a request whose response was sent at `sent_at` (monotonic seconds)."""
        by_version = self.by_version
        by_version[api_version] = by_version.get(api_version, 0) + 1
        self.queue_seconds += request.dequeued_at - request.received_at
        self.local_seconds += request.local_done_at - request.dequeued_at
        self.remote_seconds += request.responded_at - request.local_done_at
        self.response_queue_seconds += request.send_started_at - request.responded_at
        self.send_seconds += sent_at - request.send_started_at
        self.request_bytes += request.frame_bytes
        if request.throttle_time_ms:
            self.throttle_seconds += request.throttle_time_ms / 1000
        seconds = sent_at - request.received_at
        self.total_seconds += seconds
        self.total_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1

    @property
    def count(self) -> int:
        return sum(self.by_version.values())


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


# A number, or one for each set of label values.
Reading = float | dict[tuple[str, ...], float]


class Metric:
    """A metric of some part of the broker, read when it is scraped."""

    __slots__ = ("help", "kind", "labels", "name", "read")

    def __init__(
        self, name: str, help_text: str, kind: str, labels: tuple[str, ...], read: "Reader"
    ) -> None:
        self.name = name
        self.help = help_text
        self.kind = kind  # "gauge" or "counter"
        self.labels = labels
        self.read = read


class MetricsRegistry:
    """Where the parts of the broker register what they count. Names begin with "ottla_" and carry
    their unit, without Prometheus's "_total"."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        #: Metrics whose names are known only when they are read.
        self.families: list[Callable[[], Iterable[tuple[Metric, Reading]]]] = []

    def gauge(self, name: str, help_text: str, read: "Reader", *labels: str) -> None:
        """Offer a value that goes up and down. With `labels`, `read` returns a dictionary from
        tuples of label values to numbers."""
        self.metrics.append(Metric(name, help_text, "gauge", labels, read))

    def counter(self, name: str, help_text: str, read: "Reader", *labels: str) -> None:
        """Offer a value that only grows."""
        self.metrics.append(Metric(name, help_text, "counter", labels, read))


Reader = Callable[[], Reading]
