"""Statistics by topic: Kafka's BrokerTopicMetrics. Loop thread only."""

from collections import Counter
from collections.abc import Callable, Iterator

from ottla.broker.metrics.statistics import MetricsRegistry, Row
from ottla.protocol.errors import error_name

# Each topic is a series in each metric here, which Prometheus keeps in memory: 10,000 topics are
# 60,000 series and some 4 MB of text in a scrape, without those of conversions, which only a topic
# with old clients has. Topics beyond are counted together.
MAX_TOPICS = 10_000

# No topic can have this name.
OTHER_TOPICS = "(other)"


class TopicStatistics:
    """One topic, on this broker."""

    __slots__ = (
        "failed_fetches",
        "failed_produces",
        "fetch_conversions",
        "produce_conversions",
        "produces",
        "received_bytes",
        "received_messages",
        "replicas",
        "sent_bytes",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.replicas = 0  # partitions on this broker that count here
        self.received_bytes = 0
        self.received_messages = 0
        self.produces = 0  # appends of one request to one partition
        self.failed_produces = 0
        self.sent_bytes = 0
        self.failed_fetches = 0
        # Messages that were converted from and to the formats before Kafka 0.11.
        self.produce_conversions = 0
        self.fetch_conversions = 0


class BrokerTopicStatistics:
    """The topics with a replica on this broker, up to `MAX_TOPICS`; and the traffic of followers.

    As in Kafka, the counters of a topic end with its last replica on this broker.
    """

    def __init__(self) -> None:
        self._topics: dict[str, TopicStatistics] = {}
        self.other = TopicStatistics(OTHER_TOPICS)
        #: Bytes that followers here copied from leaders, and that leaders here sent to followers.
        self.replicated_in_bytes = 0
        self.replicated_out_bytes = 0
        #: Failed appends by error code.
        self.produce_errors: Counter[int] = Counter()
        #: Time and converted bytes of Fetch responses for clients older than Kafka 0.11.
        self.fetch_conversion_seconds = 0.0
        self.fetch_conversion_bytes = 0

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, topic: str) -> TopicStatistics:
        """Where the traffic of a topic is counted."""
        return self._topics.get(topic, self.other)

    def add_replica(self, topic: str) -> TopicStatistics:
        """A partition of the topic is created here; it keeps what this returns."""
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= MAX_TOPICS:
                return self.other
            found = self._topics[topic] = TopicStatistics(topic)
        found.replicas += 1
        return found

    def remove_replica(self, statistics: TopicStatistics) -> None:
        """A partition that kept these is gone from this broker."""
        if statistics is self.other:
            return
        statistics.replicas -= 1
        if statistics.replicas <= 0:
            self._topics.pop(statistics.topic, None)

    def count_failed_append(self, topic: str, code: int) -> None:
        """An append to a partition of the topic failed with this error code."""
        self.get(topic).failed_produces += 1
        self.produce_errors[code] += 1

    def count_down_conversion(
        self, topic: str, messages: int, seconds: float, converted_bytes: int
    ) -> None:
        """Records of a Fetch response were converted for an old client."""
        self.get(topic).fetch_conversions += messages
        self.fetch_conversion_seconds += seconds
        self.fetch_conversion_bytes += converted_bytes

    def used_rows(self, field: str) -> Iterator[Row]:
        """As `rows`, of the topics that count something: most never do."""
        return (row for row in self.rows(field) if row[1])

    def rows(self, field: str) -> Iterator[Row]:
        """One counter of all topics. Topics may be created and deleted between two rows."""
        for statistics in list(self._topics.values()):
            yield (statistics.topic,), getattr(statistics, field)
        other: float = getattr(self.other, field)
        if other:
            yield (OTHER_TOPICS,), other


def add_topics(registry: MetricsRegistry, topics: BrokerTopicStatistics) -> None:
    """Bytes, messages and failures by topic."""
    for field, name, help_text in (
        ("received_bytes", "received_bytes", "Bytes of records appended to partitions led here."),
        ("received_messages", "received_messages", "Records appended to partitions led here."),
        ("sent_bytes", "sent_bytes", "Bytes of records in Fetch responses to consumers."),
        ("produces", "produce_requests", "Appends, one for each partition in a Produce request."),
        (
            "failed_produces",
            "failed_produce_requests",
            "Appends that were refused, except for outdated metadata of the client.",
        ),
        (
            "failed_fetches",
            "failed_fetch_requests",
            "Reads of one partition that failed by an error of this broker or of its disk.",
        ),
    ):
        registry.counter(f"ottla_topic_{name}", help_text, _rows(topics, field), "topic")
    for request, what in (("produce", "received from"), ("fetch", "sent to")):
        registry.counter(
            f"ottla_topic_{request}_message_conversions",
            f"Records {what} clients of a format before Kafka 0.11, which were converted.",
            _used_rows(topics, f"{request}_conversions"),
            "topic",
        )
    registry.counter(
        "ottla_fetch_conversion_seconds",
        "Time in which records were converted for such clients.",
        lambda: topics.fetch_conversion_seconds,
    )
    registry.counter(
        "ottla_fetch_conversion_bytes",
        "Bytes of records that were converted for such clients.",
        lambda: topics.fetch_conversion_bytes,
    )
    registry.counter(
        "ottla_produce_errors",
        "Appends that were refused, except for outdated metadata of the client, by error.",
        lambda: {(error_name(code),): count for code, count in topics.produce_errors.items()},
        "error",
    )
    registry.counter(
        "ottla_replication_received_bytes",
        "Bytes of records that followers here copied from leaders.",
        lambda: topics.replicated_in_bytes,
    )
    registry.counter(
        "ottla_replication_sent_bytes",
        "Bytes of records in Fetch responses to followers.",
        lambda: topics.replicated_out_bytes,
    )


def _rows(topics: BrokerTopicStatistics, field: str) -> Callable[[], Iterator[Row]]:
    return lambda: topics.rows(field)


def _used_rows(topics: BrokerTopicStatistics, field: str) -> Callable[[], Iterator[Row]]:
    return lambda: topics.used_rows(field)
