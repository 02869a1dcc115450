"""A source whose rows cost nothing to make: the most that Spark's Python data source API moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

BATCH_ROWS = 4096
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


class ReadyMade(DataSource):
    """The option `rows`; one task; the columns of a topic with values of 1 KiB."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(schema, int(self.options["rows"]))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        del partition
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        columns = [
            [b"key-%012d" % number for number in range(BATCH_ROWS)],
            [b"%01024d" % number for number in range(BATCH_ROWS)],
            ["topic"] * BATCH_ROWS,
            [0] * BATCH_ROWS,
            list(range(BATCH_ROWS)),
            [1_700_000_000_000_000] * BATCH_ROWS,
            [0] * BATCH_ROWS,
        ]
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        left = self._rows
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS
