"""The streaming reader: Spark's calls, handed to a `StreamTracker`.

Needs Spark 4.2 for limits and Trigger.AvailableNow. Spark 4.0 and 4.1 request the latest
offset without a limit, so each batch reads everything new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.offsets import Json, StreamOffset, decode, encode
from pyspark_ottla.options.options import SourceOptions, check_for_stream
from pyspark_ottla.read.reader import (
    RecordBatch,
    direct_planner,
    find_decoding,
    read_task,
    to_input_partitions,
)
from pyspark_ottla.read.schema import check_projection
from pyspark_ottla.warnings_on_stderr import spark_logger

if TYPE_CHECKING:
    from pyspark_ottla.cluster.cluster import KafkaCluster
    from pyspark_ottla.read.stream import Limit, StreamTracker


T = TypeVar("T")

logger = spark_logger()


class BaseStreamReader(PickledWithJobFiles, DataSourceStreamReader):
    """What all Spark versions share. Connects at the first request and not when it is created:
    Spark creates another one only to send `read` to the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = check_for_stream(options)
        self._decoding = find_decoding(options, schema)
        self._schema = check_projection(schema, options, self._decoding)
        self._tracker: StreamTracker | None = None
        self._cluster: KafkaCluster | None = None
        self._planner = direct_planner(options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tracker": None, "_cluster": None, "_planner": None}

    @property
    def tracker(self) -> StreamTracker:
        if self._tracker is None:
            from pyspark_ottla.cluster.cluster import KafkaCluster
            from pyspark_ottla.cluster.connections import connect
            from pyspark_ottla.read.stream import StreamTracker

            options = self._options
            cluster = KafkaCluster(
                connect(options.client),
                options.client,
                lookup_retries=options.lookup_retries,
                lookup_retry_interval_ms=options.lookup_retry_interval_ms,
            )
            self._cluster = cluster
            self._tracker = StreamTracker(cluster, options)
        return self._tracker

    def initialOffset(self) -> dict[str, Json]:  # noqa: N802 - Spark's name
        return encode(self._retried(self.tracker.initial))

    def partitions(
        self, start: Mapping[str, Json], end: Mapping[str, Json]
    ) -> Sequence[InputPartition]:
        first, last = decode(start), decode(end)
        self._expect_brokers(first)
        ranges = self._retried(lambda: self.tracker.ranges(first, last))
        direct = None
        if self._planner is not None and self._cluster is not None:
            direct = self._planner.plan(self._cluster, ranges)
        sizes = None if self._cluster is None else self._cluster.bytes_per_offset
        return to_input_partitions(self._options, ranges, direct, sizes)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_task(self._options, self._schema, partition, self._decoding)

    def commit(self, end: Mapping[str, Json]) -> None:
        self.tracker.finished(decode(end))

    def next_end(self, start: Mapping[str, Json], limit: Limit) -> dict[str, Json]:
        first = decode(start)
        self._expect_brokers(first)
        return encode(self._retried(lambda: self.tracker.next_end(first, limit)))

    def _expect_brokers(self, start: StreamOffset) -> None:
        if self.tracker and self._cluster is not None and not start.fresh:
            self._cluster.expect_brokers()

    def _retried(self, look_up: Callable[[], T]) -> T:
        """The result of a look-up, repeated `fetchOffset.numRetries` times while brokers are away.

        Each repetition has all of kafka.default.api.timeout.ms, as in Spark's JVM connector. A
        cluster that was never reached is not tried again: its address may be wrong.
        """
        for _ in range(self._options.lookup_retries):
            try:
                return look_up()
            except ConnectorError as error:
                if error.condition != errors.BROKER_UNAVAILABLE:
                    raise
                if self._cluster is None or not self._cluster.is_expected:
                    raise
                logger.warning("%s; the look-up is repeated", error)
            time.sleep(self._options.lookup_retry_interval_ms / 1000)
        return look_up()


class UnlimitedStreamReader(BaseStreamReader):
    """For Spark 4.0 and 4.1, which know the old protocol by `latestOffset` without arguments."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        needed = {
            "maxOffsetsPerTrigger": options.offsets_max_per_trigger,
            "minOffsetsPerTrigger": options.offsets_min_per_trigger,
            "maxBytesPerTrigger": options.bytes_max_per_trigger,
        }
        for option, value in needed.items():
            if value is not None:
                raise ConnectorError(
                    errors.UNSUPPORTED_SPARK_VERSION,
                    f"The option {option} needs Spark 4.2 or newer",
                    "This Spark cannot limit what a Python source reads in a batch; leave it out",
                )
        self._position: dict[str, Json] | None = None

    def latestOffset(self) -> dict[str, Json]:  # type: ignore[override] # noqa: N802
        # ... the signature of Spark 4.0
        from pyspark_ottla.read.stream import Limit

        # After a restart this is the first call. Where the query began does not matter then, and
        # the options may have changed: the offset log has the start.
        start = {} if self._position is None else self._position
        self._position = self.next_end(start, Limit(everything=True))
        return self._position

    def initialOffset(self) -> dict[str, Json]:  # noqa: N802 - Spark's name
        initial = super().initialOffset()
        if self._position is None:
            self._position = initial
        return initial

    def partitions(
        self, start: Mapping[str, Json], end: Mapping[str, Json]
    ) -> Sequence[InputPartition]:
        self._position = dict(end)  # after a restart, the journal knows better than we do
        return super().partitions(start, end)
