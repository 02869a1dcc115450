"""One task on an executor: fetch a range, decode it, yield Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from ottla.protocol.records.errors import CodecUnavailableError, RecordsError
from pyspark_ottla import errors
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import acquire_client, release_client
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.missing_packages import missing_codec
from pyspark_ottla.offsets import OffsetRange, describe
from pyspark_ottla.options.options import SourceOptions
from pyspark_ottla.read.aborted import AbortedFilter
from pyspark_ottla.read.arrow import BatchBuilder
from pyspark_ottla.read.columns import read_columns
from pyspark_ottla.read.fetch import FetchedData, PartitionFetch
from pyspark_ottla.read.planning import LossReport
from pyspark_ottla.read.prefetcher import Prefetcher
from pyspark_ottla.read.schema import arrow_schema, raw_schema, row_schema
from pyspark_ottla.read.task_metrics import TaskMetrics
from pyspark_ottla.transform import transformed

if TYPE_CHECKING:
    from pyspark_ottla.decode.resolved import ResolvedDecoding
    from pyspark_ottla.remote.segment import PlannedSegment

RecordBatch = Any


def read_range(
    options: SourceOptions,
    schema: StructType,
    wanted: OffsetRange,
    decoding: ResolvedDecoding | None = None,
    segments: tuple[PlannedSegment, ...] = (),
) -> Iterator[RecordBatch]:
    """Every record of the range in order, decoded, then as the option transform has them; raises
    ConnectorError when one cannot be read. Those of the tiered `segments` come from their store."""
    if options.transform is None:
        return _decoded(options, schema, wanted, decoding, segments)
    batches = _decoded(options, row_schema(options, decoding), wanted, decoding, segments)
    return transformed(options.transform, batches, arrow_schema(schema))


def _decoded(
    options: SourceOptions,
    schema: StructType,
    wanted: OffsetRange,
    decoding: ResolvedDecoding | None,
    segments: tuple[PlannedSegment, ...],
) -> Iterator[RecordBatch]:
    metrics = TaskMetrics()
    if decoding is None:
        return _read(options, schema, wanted, metrics, segments)
    from pyspark_ottla.decode.decoding import TaskDecoding

    task = TaskDecoding(decoding, arrow_schema(schema), wanted.partition, metrics)
    raw = raw_schema(schema, options)
    return task.batches(_read(options, raw, wanted, metrics, segments))


def _read(
    options: SourceOptions,
    schema: StructType,
    wanted: OffsetRange,
    metrics: TaskMetrics,
    segments: tuple[PlannedSegment, ...],
) -> Iterator[RecordBatch]:
    builder = BatchBuilder(
        arrow_schema(schema),
        wanted.partition,
        value_format=options.value_format,
        null_on_error=options.on_decode_error == "null",
        rows_max=options.batch_rows,
        bytes_max=options.batch_bytes,
    )
    try:
        for response in _responses(options, wanted, metrics, segments):
            batches = _batches(options, builder, wanted, response)
            while (batch := _decode_next(batches, metrics)) is not None:
                metrics.rows += batch.num_rows
                yield batch
    finally:
        metrics.report(
            wanted, to_stderr=options.log_task_metrics, address=options.task_metrics_address
        )


def _decode_next(batches: Iterator[RecordBatch], metrics: TaskMetrics) -> RecordBatch | None:
    begin = time.perf_counter()
    try:
        return next(batches, None)
    finally:
        metrics.decode_seconds += time.perf_counter() - begin


def _batches(
    options: SourceOptions, builder: BatchBuilder, wanted: OffsetRange, response: FetchedData
) -> Iterator[RecordBatch]:
    """The Arrow batches of one response; raises ConnectorError."""
    columns_of_response = read_columns(
        response.records,
        start=response.start,
        end=wanted.end,
        skip=AbortedFilter(response.aborted if options.client.read_committed else []),
        check_crcs=options.client.check_crcs and not response.is_verified,
        decompressed_bytes_max=DEFAULT_MAX_DECOMPRESSED_BYTES,
    )
    try:
        for columns in columns_of_response:
            yield from builder.build(columns)
    except CodecUnavailableError as error:
        records = f"Records of {describe(wanted.partition)} from offset {response.start} on"
        raise missing_codec(records, error) from None
    except RecordsError as error:
        raise ConnectorError(
            errors.CORRUPT_DATA,
            f"{describe(wanted.partition)} holds bytes that cannot be read: {error}",
            "The data on the broker is damaged; to go on after it, start a new query behind it",
        ) from None


def _responses(
    options: SourceOptions,
    wanted: OffsetRange,
    metrics: TaskMetrics,
    segments: tuple[PlannedSegment, ...],
) -> Iterator[FetchedData]:
    """The responses of a range, prefetched in a thread; the client is kept for the next task."""
    client = acquire_client(options.client)
    cluster = KafkaCluster(client, options.client)  # opens no connection yet

    def from_broker(some: OffsetRange, fetch_bytes: int) -> Iterator[FetchedData]:
        fetch = PartitionFetch(
            cluster,
            some,
            report=LossReport(options.on_data_loss),
            fetch_bytes=fetch_bytes,
            read_committed=options.client.read_committed,
            timeout_ms=options.poll_timeout_ms,
            metrics=metrics,
        )
        return fetch.responses()

    responses = from_broker(wanted, options.fetch_bytes)
    if segments:
        from pyspark_ottla.remote.reading import DirectRead

        direct = DirectRead(
            options.remote,
            wanted,
            segments,
            from_broker,
            fetch_bytes=options.fetch_bytes,
            read_committed=options.client.read_committed,
            metrics=metrics,
        )
        responses = direct.responses()
    if options.prefetch == 0:
        yield from responses
        release_client(options.client, client)
        return
    ahead = Prefetcher(responses, options.prefetch, f"fetch {describe(wanted.partition)}")
    try:
        yield from ahead
    finally:
        # A limit above the scan may end the task early, with a fetch still under way.
        if ahead.close():
            release_client(options.client, client)
