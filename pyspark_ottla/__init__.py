"""Topics of Kafka-protocol brokers in Spark: `spark.read.format("ottla")`, without a jar.

Spark looks for Python data sources by importing every module whose name begins with `pyspark_` and
taking its `DefaultSource`. One failing import disables all of them, so this module imports
nothing that needs more than pyspark; everything else is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from pyspark_ottla.job_files import PickledWithJobFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class DefaultSource(PickledWithJobFiles, DataSource):
    """The data source `ottla`. Its options are those of Spark's Kafka source; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        from pyspark_ottla.options.options import parse_source_options
        from pyspark_ottla.options.table_options import with_table_options
        from pyspark_ottla.read.schema import row_schema

        options = parse_source_options(self.options)
        decoding = None
        if options.decode.fields:
            from pyspark_ottla.decode.resolved import resolve_decoding

            decoding = resolve_decoding(options.decode)
        return with_table_options(row_schema(options, decoding), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_ottla.options.options import parse_source_options
        from pyspark_ottla.options.table_options import split_schema
        from pyspark_ottla.read.reader import create_batch_reader

        schema, options = split_schema(schema, self.options)
        return create_batch_reader(parse_source_options(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_ottla.options.options import parse_source_options
        from pyspark_ottla.options.table_options import split_schema
        from pyspark_ottla.read.stream_reader_factory import create_stream_reader

        schema, options = split_schema(schema, self.options)
        return create_stream_reader(parse_source_options(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_ottla.options.sink_options import parse_sink_options
        from pyspark_ottla.write.writer import BatchWriter

        return BatchWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_ottla.options.sink_options import parse_sink_options
        from pyspark_ottla.write.stream_writer_factory import create_stream_writer

        # Complete mode sets `overwrite`: every batch holds the whole result, and is appended
        # as in Spark's own Kafka sink.
        return create_stream_writer(parse_sink_options(self.options), schema)


def register(spark: SparkSession) -> None:
    """Makes `format("ottla")` known where Spark cannot find it by itself.

    That is the case when the package came with the job as a zip, when another module on the path
    whose name begins with `pyspark_` fails to import, or when this package was put on the path
    after the session's first lookup. It also lets writes to `ottla` have the default save mode and
    the update mode, see `writer_modes`.
    """
    from pyspark_ottla.connect import is_connect, session_source
    from pyspark_ottla.early_connection import connect_early
    from pyspark_ottla.writer_modes import adopt_connect_modes, adopt_modes

    if is_connect(spark):
        spark.dataSource.register(session_source(spark))
        adopt_connect_modes()
    else:
        connect_early(spark.sparkContext.environment)
        spark.dataSource.register(DefaultSource)
        adopt_modes()


def pickled(function: Callable[..., Any]) -> str:
    """A value for the option `transform`: a function of a notebook or of the job's own file.

    `.option("transform", pyspark_ottla.pickled(clean))`, where `clean` takes an iterator of
    pyarrow record batches and yields some. Raises ConnectorError for what cannot be pickled.
    """
    from pyspark_ottla import transform

    return transform.pickled(function)
