"""The batch reader, and the reading of one task that batches and streams share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.missing_packages import missing_package
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import SourceOptions, check_for_batch
from pyspark_ottla.read.schema import check_projection
from pyspark_ottla.task_process import prepare_process

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


class SharedPartition(InputPartition):
    """Several small ranges that one task reads, one after another."""

    def __init__(self, parts: Sequence[OffsetRangePartition]) -> None:
        super().__init__(tuple(part.value for part in parts))
        self.parts = tuple(parts)


def to_input_partitions(
    options: SourceOptions,
    ranges: list[OffsetRange],
    direct: DirectPlan | None = None,
    bytes_per_offset: Callable[[TopicPartition, int], float | None] | None = None,
) -> list[InputPartition]:
    """The ranges as tasks, split as the options have it, then between tiered segments. Small ones
    share a task if `bytes_per_offset` can look at their records."""
    from pyspark_ottla.read.splitting import biggest_first, split_ranges

    pieces = split_ranges(
        ranges, minimum=options.partitions_min, records_max=options.partition_records_max
    )
    if direct is not None:
        pieces = biggest_first(direct.cut(pieces))
    if direct is not None or bytes_per_offset is None or not options.shares_tasks:
        tasks = [[piece] for piece in pieces]
    else:
        tasks = _shared(options, pieces, bytes_per_offset)
    found: list[InputPartition] = []
    for task in tasks:
        parts = [
            OffsetRangePartition(piece.partition.topic, piece.partition.partition, *piece[1:])
            for piece in task
        ]
        if direct is not None:
            parts[0].segments = direct.segments_of(task[0])
        found.append(parts[0] if len(parts) == 1 else SharedPartition(parts))
    return found


def _shared(
    options: SourceOptions,
    pieces: list[OffsetRange],
    bytes_per_offset: Callable[[TopicPartition, int], float | None],
) -> list[list[OffsetRange]]:
    from pyspark_ottla.read.sharing import SHARED_OFFSETS_MAX, Sharing, cores, share_tasks

    tasks_min = max(cores(options.cores), options.partitions_min or 0)
    offsets_max = min(SHARED_OFFSETS_MAX, options.partition_records_max or SHARED_OFFSETS_MAX)
    return share_tasks(
        pieces,
        Sharing(tasks_min, offsets_max),
        lambda piece: bytes_per_offset(piece.partition, piece.start),
    )


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
    if isinstance(partition, SharedPartition):
        some = (read_task(options, schema, part, decoding) for part in partition.parts)
        return _joined(chain.from_iterable(some), options)
    if not isinstance(partition, OffsetRangePartition):
        return iter(())
    try:
        from pyspark_ottla.read.task import read_range
    except ImportError as error:
        raise missing_package("reading", error) from None
    prepare_process()
    return read_range(options, schema, partition.range, decoding, partition.segments)


def _joined(batches: Iterator[RecordBatch], options: SourceOptions) -> Iterator[RecordBatch]:
    """The batches of small ranges together, up to the size that a batch may have: each costs Spark
    about a millisecond."""
    import pyarrow as pa

    waiting: list[RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > options.batch_rows or size + batch.nbytes > options.batch_bytes
        ):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


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
            return to_input_partitions(options, ranges, direct, cluster.bytes_per_offset)

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
