"""The streaming reader for the Spark that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ottla.read.reader import check_transform
from pyspark_ottla.read.stream_reader import UnlimitedStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from pyspark_ottla.options.options import SourceOptions


def create_stream_reader(options: SourceOptions, schema: StructType) -> DataSourceStreamReader:
    """The reader for the Spark that runs."""
    check_transform(options)
    try:
        from pyspark_ottla.read.admission import AdmissionStreamReader
    except ImportError:
        return UnlimitedStreamReader(options, schema)
    return AdmissionStreamReader(options, schema)
