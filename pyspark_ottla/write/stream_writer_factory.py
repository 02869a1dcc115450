"""The streaming writer for the Spark that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.write.writer import check_sink_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

    from pyspark_ottla.options.sink_options import SinkOptions


def create_stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """The streaming writer, where Spark has Arrow writers for streams (4.1 and newer)."""
    check_sink_schema(schema, options)
    try:
        from pyspark_ottla.write.stream_writer import StreamWriter
    except ImportError:
        raise ConnectorError(
            errors.UNSUPPORTED_SPARK_VERSION,
            "Writing a stream needs Spark 4.1 or newer",
            "Use foreachBatch with a batch write",
        ) from None
    return StreamWriter(options)
