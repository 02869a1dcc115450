"""The batch reader, and the reading of one task that batches and streams share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.missing_packages import missing_package
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import SourceOptions, check_for_batch
from pyspark_ottla.read.schema import check_projection
from pyspark_ottla.task_process import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from pyspark_ottla.cluster.cluster import KafkaCluster
    from pyspark_ottla.decode.resolved import ResolvedDecoding
    from pyspark_ottla.remote.planning import DirectPlan, DirectPlanner
    from pyspark_ottla.remote.segment import PlannedSegment

# Imported in no other process than the one that pushes filters down.
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

# Exists only for Python; an Arrow RecordBatch as far as Spark is concerned.
RecordBatch = Any


class OffsetRangePartition(InputPartition):
    """What one task reads. Small and plain: it is pickled into every plan."""

    #: Tiered segments with offsets of the range, to read from their store.
    segments: tuple[PlannedSegment, ...] = ()

    def __init__(
        self, topic: str, partition: int, start: int, end: int, topic_id: str | None = None
    ) -> None:
        super().__init__((topic, partition, start, end))
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id

    @property
    def range(self) -> OffsetRange:
        place = TopicPartition(self.topic, self.partition)
        return OffsetRange(place, self.start, self.end, self.topic_id)


def to_input_partitions(
    options: SourceOptions, ranges: list[OffsetRange], direct: DirectPlan | None = None
) -> list[InputPartition]:
    """The ranges as tasks, split as the options have it."""
    from pyspark_ottla.read.splitting import split_ranges

    pieces = split_ranges(
        ranges if direct is None else direct.cut(ranges),
        minimum=options.partitions_min,
        records_max=options.partition_records_max,
    )
    found: list[InputPartition] = []
    for piece in pieces:
        task = OffsetRangePartition(piece.partition.topic, piece.partition.partition, *piece[1:])
        if direct is not None:
            task.segments = direct.segments_of(piece)
        found.append(task)
    return found


def direct_planner(options: SourceOptions) -> DirectPlanner | None:
    """Plans what is read from the store of tiered segments; None unless the options have it."""
    if not options.remote.is_direct:
        return None
    from pyspark_ottla.remote.planning import DirectPlanner

    return DirectPlanner(options.remote, options.poll_timeout_ms)


def read_task(
    options: SourceOptions,
    schema: StructType,
    partition: InputPartition,
    decoding: ResolvedDecoding | None = None,
) -> Iterator[RecordBatch]:
    """The records of one task as Arrow batches; an empty plan comes as a partition of nothing."""
    if not isinstance(partition, OffsetRangePartition):
        return iter(())
    try:
        from pyspark_ottla.read.task import read_range
    except ImportError as error:
        raise missing_package("reading", error) from None
    freeze_imports()
    return read_range(options, schema, partition.range, decoding, partition.segments)


def find_decoding(options: SourceOptions, schema: StructType) -> ResolvedDecoding | None:
    """The formats with their schemas, fetched in this process, which is the driver's.

    Raises ConnectorError if the columns of the query cannot be decoded to.
    """
    if not options.decode.fields:
        return None
    from pyspark_ottla.decode.checks import check_decoders
    from pyspark_ottla.decode.resolved import resolve_decoding

    decoding = resolve_decoding(options.decode, schema)
    check_projection(schema, options, decoding)
    if decoding is not None and options.transform is None:
        check_decoders(decoding, schema)
    return decoding


def check_transform(options: SourceOptions) -> None:
    """Raises ConnectorError, when the query is planned, if there is no such function."""
    if options.transform is not None:
        from pyspark_ottla.transform import load_function

        load_function(options.transform)


class BatchReader(PickledWithJobFiles, DataSourceReader):
    """Reads what is there between two positions, resolved once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = check_for_batch(options)
        self._decoding = find_decoding(options, schema)
        self._schema = check_projection(schema, options, self._decoding)

    def partitions(self) -> list[InputPartition]:
        from pyspark_ottla.cluster.connections import cluster_of
        from pyspark_ottla.read.planning import LossReport, batch_ranges

        options = self._options
        planner = direct_planner(options)
        with cluster_of(options) as cluster:
            ranges = batch_ranges(
                cluster,
                options.subscription,
                options.starting,
                options.ending,
                options.client.group_id,
                LossReport(options.on_data_loss),
            )
            if options.track_topic_ids:
                ids = cluster.topic_ids({piece.partition.topic for piece in ranges})
                ranges = [
                    piece._replace(topic_id=ids.get(piece.partition.topic)) for piece in ranges
                ]
            ranges = self._narrowed(cluster, ranges)
            direct = None if planner is None else planner.plan(cluster, ranges)
        return to_input_partitions(options, ranges, direct)

    def _narrowed(self, cluster: KafkaCluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return ranges

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_task(self._options, self._schema, partition, self._decoding)


class FilteringBatchReader(BatchReader):
    """Reads less where filters on topic, partition, offset or timestamp allow it."""

    _filters: tuple[Any, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = tuple(filters)
        return filters  # all of them: Spark applies them to the rows in any case

    def _narrowed(self, cluster: KafkaCluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        from pyspark_ottla.read.pushdown import bounds_of, narrow

        return narrow(cluster, ranges, bounds_of(self._filters))


def create_batch_reader(options: SourceOptions, schema: StructType) -> BatchReader:
    """The reader for the current process.

    Spark fails a query whose reader takes filters while spark.sql.python.filterPushdown.enabled is
    off, as it is by default. With it on, a worker of its own creates the reader first.
    """
    check_transform(options)
    # After a transform, a column may mean something else than what was read.
    if PUSHDOWN_WORKER in sys.modules and options.transform is None:
        return FilteringBatchReader(options, schema)
    return BatchReader(options, schema)
