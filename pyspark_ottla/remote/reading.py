"""The reading of a task whose range has tiered segments: from the store, the rest from the broker.

Offsets are yielded in order, and none is skipped: what a segment does not give, because an object
is missing or corrupt or the store is away, is read through the broker, or fails the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ottla.storage.errors import StorageError
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange, describe
from pyspark_ottla.options.remote_options import FAIL, RemoteOptions
from pyspark_ottla.read.fetch import FetchedData, end_of_last_batch
from pyspark_ottla.read.task_metrics import TaskMetrics
from pyspark_ottla.remote.segment import PlannedSegment
from pyspark_ottla.remote.segment_stream import SegmentStream
from pyspark_ottla.remote.store import open_store
from pyspark_ottla.warnings_on_stderr import spark_logger

logger = spark_logger()

#: The responses of the broker for some offsets of the range, by fetches of at most so many bytes.
FromBroker = Callable[[OffsetRange, int], Iterable[FetchedData]]


class DirectRead:
    """One walk over the range of a task; used once."""

    def __init__(
        self,
        options: RemoteOptions,
        wanted: OffsetRange,
        segments: Iterable[PlannedSegment],
        from_broker: FromBroker,
        *,
        fetch_bytes: int,
        read_committed: bool,
        metrics: TaskMetrics,
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._segments = segments
        self._from_broker = from_broker
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed
        self._metrics = metrics

    def responses(self) -> Iterator[FetchedData]:
        """Until the range is read. Raises ConnectorError when it cannot be."""
        position, end = self._wanted.start, self._wanted.end
        for segment in self._segments:
            if position < segment.start:
                yield from self._broker(position, segment.start)
            position = max(position, segment.start)
            until = min(segment.end, end)
            try:
                for data in self._from_store(segment, position, until):
                    position = end_of_last_batch(data.records) or position
                    yield data
            except StorageError as error:
                self._metrics.remote_errors += 1
                self._check_may_fall_back(position, until, error)
                yield from self._broker(position, until)
            position = until
        yield from self._broker(position, end)

    def _from_store(self, segment: PlannedSegment, start: int, end: int) -> Iterator[FetchedData]:
        stream = SegmentStream(
            open_store(self._options),
            segment,
            self._fetch_bytes,
            self._aborted_at if self._read_committed else None,
        )
        for data in stream.responses(start, end):
            self._metrics.fetched_bytes += len(data.records)
            self._metrics.remote_bytes += len(data.records)
            yield data

    def _broker(self, start: int, end: int) -> Iterator[FetchedData]:
        if start < end:
            yield from self._from_broker(
                self._wanted._replace(start=start, end=end), self._fetch_bytes
            )

    def _aborted_at(self, offset: int) -> list[tuple[int, int]]:
        """As `segment_stream.AbortedAt`. Raises StorageError if the broker does not have the offset
        any more: then it also says what is lost of the segment."""
        one = self._wanted._replace(start=offset, end=offset + 1)
        for data in self._from_broker(one, 1):  # a broker returns one batch at least
            return data.aborted
        raise StorageError(f"the broker has no records at offset {offset} any more")

    def _check_may_fall_back(self, position: int, until: int, error: StorageError) -> None:
        what = (
            f"Offsets {position} to {until} of {describe(self._wanted.partition)} cannot be read "
            f"from the store: {str(error).rstrip('.')}"
        )
        if self._options.on_error == FAIL:
            raise ConnectorError(
                errors.REMOTE_READ_FAILED,
                what,
                "Check the object with ottla tiered verify. With ottla.remote.onError=broker they "
                "are read through the broker",
            )
        logger.warning("%s; they are read through the broker", what)
