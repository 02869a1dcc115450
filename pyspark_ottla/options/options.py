"""The options of the source: names, defaults and checks, all before the first byte on a network.

The names and meanings are those of Spark's JVM connector where it has them. Spark lower-cases
every option name before we see it, so names are looked up in lower case and shown in their real
spelling. `parse_source_options` does what both kinds of reading share and runs at `.load()`;
`check_for_batch` and `check_for_stream` add the rules of each. Values of `kafka.*` are in
`client_options`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors, offsets
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import Offsets
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.options.decode_options import (
    DECODE_OPTIONS,
    DecodeOptions,
    parse_decoding,
    parse_plain_format,
)
from pyspark_ottla.options.registry_options import REGISTRY_OPTIONS
from pyspark_ottla.options.remote_options import (
    REMOTE_OPTIONS,
    RemoteOptions,
    parse_remote_options,
    without_store_settings,
)
from pyspark_ottla.options.values import INT_MAX, OptionReader, invalid, plain_names
from pyspark_ottla.transform import is_function

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
SOURCE_OPTIONS = (
    *SUBSCRIPTIONS,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "numCores",
    "sharedTasks",
    "includeHeaders",
    "keyFormat",
    "valueFormat",
    "onDecodeError",
    *DECODE_OPTIONS,
    *REGISTRY_OPTIONS,
    "transform",
    "commitOffsets",
    "groupIdPrefix",
    "trackTopicIds",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "batchRows",
    "batchBytes",
    "fetchMaxBytes",
    "prefetch",
    "logTaskMetrics",
    "taskMetricsAddress",
    *REMOTE_OPTIONS,
)
# Put among a source's options by Spark itself: load(path), the stream reader, SQL tables.
SPARK_OPTIONS = (
    "path",
    "paths",
    "checkpointLocation",
    "queryName",
    "serialization.format",
    "provider",
    "owner",
    "location",
    "is_managed_location",
    "external",
    "comment",
    "collation",
)

# Those of the sink, for jobs with one set of options for both directions.
OF_SINK = ("topic", "delivery", "writeId", "batchId", "transactionalIdPrefix", "writeTimestamp")

# HOST:PORT/SECRET.
TASK_LISTENER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):\d{1,5}/[0-9a-f]+")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Position(NamedTuple):
    """Where reading begins or ends, as the options set it; resolved against a broker later.

    `kind` is earliest, latest, committed, offsets, timestamps (one a partition) or timestamp (one
    for all). `if_missing` is used when a timestamp has no record at or after it, or a
    group no committed offset: error, earliest or latest.
    """

    kind: str
    option: str
    offsets: Offsets = {}  # noqa: RUF012 - never changed; a NamedTuple's default
    timestamp: int = 0
    if_missing: str = "error"


class Subscription(NamedTuple):
    """Exactly one of: topics by name, topics by pattern (full match), partitions."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def only_topic(self) -> str | None:
        """The topic if there is one alone; a pattern may match others later."""
        topics = self.topics | {tp.topic for tp in self.partitions}
        return next(iter(topics)) if len(topics) == 1 and self.pattern is None else None

    def wants(self, partition: TopicPartition) -> bool:
        """Whether the partition belongs to what is read, be it there or not."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics or partition in self.partitions


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a read, checked; the same in every process of a query."""

    client: ClientOptions
    subscription: Subscription
    starting: Position | None
    ending: Position | None
    on_data_loss: str  # fail or warn
    offsets_max_per_trigger: int | None
    offsets_min_per_trigger: int | None
    bytes_max_per_trigger: int | None
    trigger_delay_max_ms: int
    partitions_min: int | None
    partition_records_max: int | None
    include_headers: bool
    key_format: str
    value_format: str
    on_decode_error: str
    decode: DecodeOptions
    transform: str | None
    commit_offsets: bool
    track_topic_ids: bool
    poll_timeout_ms: int
    lookup_retries: int
    lookup_retry_interval_ms: int
    batch_rows: int
    batch_bytes: int
    fetch_bytes: int
    prefetch: int
    log_task_metrics: bool
    task_metrics_address: str | None
    remote: RemoteOptions
    cores: int | None = None
    shares_tasks: bool = True


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Checks everything that can be checked without knowing batch from stream."""
    options = plain_names(options)
    reader = OptionReader(without_store_settings(options))
    reader.refuse_unknown(SOURCE_OPTIONS, (*SPARK_OPTIONS, *OF_SINK), "the ottla source")
    client = parse_client_options(options, writes=False)
    commit_offsets = reader.boolean("commitOffsets", False)
    if commit_offsets and client.group_id is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "The option commitOffsets is true, but kafka.group.id is not set",
            "Set kafka.group.id to the group that the position is to be shown under",
        )
    offsets_max = reader.integer("maxOffsetsPerTrigger", minimum=1)
    offsets_min = reader.integer("minOffsetsPerTrigger", minimum=1)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"minOffsetsPerTrigger ({offsets_min}) is more than maxOffsetsPerTrigger "
            f"({offsets_max})",
            "A trigger could never take enough; lower the one or raise the other",
        )
    fetch_bytes = reader.integer_or("fetchMaxBytes", 4 << 20, minimum=1, maximum=INT_MAX)
    if not reader.given(["fetchMaxBytes"]):
        fetch_bytes = reader.integer_or(
            "kafka.fetch.max.bytes", fetch_bytes, minimum=1, maximum=INT_MAX
        )
    subscription = _parse_subscription(reader)
    return SourceOptions(
        client=client,
        subscription=subscription,
        starting=_parse_start(reader, client),
        ending=_parse_end(reader),
        on_data_loss={"true": "fail", "false": "warn", "warn": "warn"}[
            reader.choice("failOnDataLoss", "true", ("true", "false", "warn"))
        ],
        offsets_max_per_trigger=offsets_max,
        offsets_min_per_trigger=offsets_min,
        bytes_max_per_trigger=reader.integer("maxBytesPerTrigger", minimum=1),
        trigger_delay_max_ms=reader.duration_ms("maxTriggerDelay", 15 * 60_000),
        partitions_min=_parse_partitions_min(reader),
        partition_records_max=reader.integer("maxRecordsPerPartition", minimum=1),
        include_headers=reader.boolean("includeHeaders", False),
        key_format=parse_plain_format(reader, "key"),
        value_format=parse_plain_format(reader, "value"),
        on_decode_error=reader.choice("onDecodeError", "error", ("error", "null")),
        decode=parse_decoding(reader, subscription.only_topic),
        transform=_parse_transform(reader),
        commit_offsets=commit_offsets,
        track_topic_ids=reader.boolean("trackTopicIds", True),
        poll_timeout_ms=reader.duration_ms("kafkaConsumer.pollTimeoutMs", 120_000),
        lookup_retries=reader.integer_or("fetchOffset.numRetries", 3, minimum=0, maximum=1000),
        lookup_retry_interval_ms=reader.integer_or(
            "fetchOffset.retryIntervalMs", 10, minimum=0, maximum=600_000
        ),
        batch_rows=reader.integer_or("batchRows", 8192, minimum=1, maximum=1 << 20),
        batch_bytes=reader.integer_or("batchBytes", 4 << 20, minimum=1, maximum=1 << 30),
        fetch_bytes=fetch_bytes,
        prefetch=reader.integer_or("prefetch", 2, minimum=0, maximum=16),
        log_task_metrics=reader.boolean("logTaskMetrics", False),
        task_metrics_address=_parse_task_metrics_address(reader),
        remote=parse_remote_options(reader, options),
        cores=reader.integer("numCores", minimum=1, maximum=INT_MAX),
        shares_tasks=reader.boolean("sharedTasks", True),
    )


def _parse_partitions_min(reader: OptionReader) -> int | None:
    cores = reader.integer("numCores", minimum=1, maximum=INT_MAX)
    if (reader.text("minPartitions") or "").lower() != "auto":
        return reader.integer("minPartitions", minimum=1, maximum=INT_MAX)
    if cores is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "minPartitions is auto, but numCores is not set",
            "Set numCores to spark.sparkContext.defaultParallelism; a plan must not depend on the "
            "cluster of the moment, or a repeated batch would get other tasks",
        )
    return cores


def _parse_task_metrics_address(reader: OptionReader) -> str | None:
    address = reader.text("taskMetricsAddress")
    if address is not None and TASK_LISTENER.fullmatch(address) is None:
        raise invalid("taskMetricsAddress", address, "the address of a TaskListener")
    return address


def _parse_transform(reader: OptionReader) -> str | None:
    path = reader.text("transform")
    if path is not None and not is_function(path):
        raise invalid(
            "transform",
            path,
            "a function as package.module:function, or pyspark_ottla.pickled(function)",
        )
    return path


def _parse_subscription(reader: OptionReader) -> Subscription:
    given = [option for option in SUBSCRIPTIONS if reader.text(option) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are both set" if given else "No option sets what to read"
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS if given else errors.MISSING_OPTION,
            what,
            "Set exactly one of subscribe (topic names with commas between), subscribePattern "
            "and assign",
        )
    value = reader.text(given[0]) or ""
    if given[0] == "assign":
        return Subscription(partitions=offsets.parse_assignment(value))
    if given[0] == "subscribePattern":
        return Subscription(pattern=_python_pattern(value))
    topics = frozenset(topic.strip() for topic in value.split(",") if topic.strip())
    for topic in sorted(topics):
        if TOPIC_NAME.fullmatch(topic) is None or topic in (".", ".."):
            raise invalid(
                "subscribe", value, "topic names of letters, digits and . _ -, with commas between"
            )
    if not topics:
        raise invalid("subscribe", value, "at least one topic name")
    return Subscription(topics=topics)


def _python_pattern(value: str) -> str:
    """A Java regular expression in Python's syntax; the difference is small for topic names."""
    pattern = re.sub(r"\(\?<([A-Za-z]\w*)>", r"(?P<\1>", value)
    try:
        with warnings.catch_warnings():
            # Of sets within sets, which are intersections and unions in Java, characters in Python.
            warnings.simplefilter("error", FutureWarning)
            re.compile(pattern)
    except (re.error, FutureWarning) as error:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The option subscribePattern is no regular expression: {value!r} ({error})",
            "It must match whole topic names; use what Java's and Python's syntax share",
        ) from None
    return pattern


def _parse_start(reader: OptionReader, client: ClientOptions) -> Position | None:
    """The first given of startingTimestamp, ...ByTimestamp, startingOffsets, as the JVM's order."""
    strategy = reader.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    timestamp = reader.integer("startingTimestamp", minimum=offsets.EARLIEST)
    if timestamp is not None:
        return Position("timestamp", "startingTimestamp", timestamp=timestamp, if_missing=strategy)
    by_timestamp = reader.text("startingOffsetsByTimestamp")
    if by_timestamp is not None:
        option = "startingOffsetsByTimestamp"
        times = offsets.parse_partition_values(
            by_timestamp, option, minimum=offsets.EARLIEST, example='{"topicA":{"0":1700000000000}}'
        )
        return Position("timestamps", option, times, if_missing=strategy)
    text = reader.text("startingOffsets")
    if text is None:
        return None
    option, lower = "startingOffsets", text.lower()
    if lower in ("earliest", "latest"):
        return Position(lower, option)
    if lower == "committed" or lower.startswith("committed:"):
        return _parse_committed(text, lower, client)
    if not text.startswith("{"):
        raise invalid(
            option, text, f"earliest, latest, committed or JSON such as {offsets.EXAMPLE}"
        )
    exact = offsets.parse_partition_values(text, option, minimum=offsets.EARLIEST)
    return Position("offsets", option, exact)


def _parse_committed(text: str, lower: str, client: ClientOptions) -> Position:
    fallback = lower.partition(":")[2] or "error"
    if fallback not in ("earliest", "latest", "error"):
        raise invalid(
            "startingOffsets", text, "committed, committed:earliest, :latest or committed:error"
        )
    if client.group_id is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "startingOffsets is committed, but kafka.group.id is not set",
            "Set kafka.group.id to the group whose committed offsets to start from",
        )
    return Position("committed", "startingOffsets", if_missing=fallback)


def _parse_end(reader: OptionReader) -> Position | None:
    timestamp = reader.integer("endingTimestamp", minimum=offsets.EARLIEST)
    if timestamp is not None:
        return Position("timestamp", "endingTimestamp", timestamp=timestamp, if_missing="latest")
    by_timestamp = reader.text("endingOffsetsByTimestamp")
    if by_timestamp is not None:
        option = "endingOffsetsByTimestamp"
        times = offsets.parse_partition_values(
            by_timestamp, option, minimum=offsets.EARLIEST, example='{"topicA":{"0":1700000000000}}'
        )
        return Position("timestamps", option, times, if_missing="latest")
    text = reader.text("endingOffsets")
    if text is None:
        return None
    option = "endingOffsets"
    if text.lower() == "latest":
        return Position("latest", option)
    if not text.startswith("{"):
        raise invalid(option, text, f"latest or JSON such as {offsets.EXAMPLE} without -2")
    exact = offsets.parse_partition_values(text, option, minimum=offsets.EARLIEST)
    if offsets.EARLIEST in exact.values():
        raise invalid(option, text, "no -2 (earliest): a range cannot end there")
    return Position("offsets", option, exact)


def check_for_batch(options: SourceOptions) -> SourceOptions:
    """The rules of a batch read: it begins at the earliest offset by default, never at latest."""
    start = options.starting
    exact = start.offsets.values() if start is not None and start.kind == "offsets" else ()
    if start is not None and (start.kind == "latest" or offsets.LATEST in exact):
        raise ConnectorError(
            errors.INVALID_OPTION,
            "The option startingOffsets is latest (-1), which a batch read cannot start from: "
            "nothing would be read",
            "Use earliest, an offset or a timestamp",
        )
    if options.commit_offsets:
        raise ConnectorError(
            errors.UNSUPPORTED_OPTION,
            "The option commitOffsets is for streaming queries",
            "Leave it out of a batch read",
        )
    _check_start_before_end(options.starting, options.ending)
    return options


def _check_start_before_end(start: Position | None, end: Position | None) -> None:
    """For positions of the same kind, which can be compared before they are resolved."""
    if start is None or end is None or start.kind != end.kind:
        return
    what = "offset" if start.kind == "offsets" else "timestamp"
    for tp in sorted(start.offsets.keys() & end.offsets.keys()):
        first, last = start.offsets[tp], end.offsets[tp]
        if first >= 0 and last >= 0 and first > last:
            raise ConnectorError(
                errors.START_GREATER_THAN_END,
                f"The {what} {first} of {start.option} is greater than the {what} {last} of "
                f"{end.option} for {offsets.describe(tp)}",
                "A read goes from the lower to the higher one",
            )


def check_for_stream(options: SourceOptions) -> SourceOptions:
    """The rules of a stream: it has no end."""
    if options.ending is not None:
        raise ConnectorError(
            errors.UNSUPPORTED_OPTION,
            f"The option {options.ending.option} is for batch reads: a streaming query has no end",
            "Leave it out; Trigger.AvailableNow stops a query at what is there now",
        )
    return options
