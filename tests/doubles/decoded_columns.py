"""Fields resolved and decoded without a query, for tests of the decoder."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.decode.decoding import TaskDecoding
from pyspark_ottla.decode.resolved import ResolvedDecoding, resolve_decoding
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.read.reader import find_decoding
from pyspark_ottla.read.schema import arrow_schema, raw_schema, row_schema

ORDERS = TopicPartition("orders", 0)


def options(**given: object) -> SourceOptions:
    """Of a read of `orders`; `_` in a name stands for `.`."""
    named = {
        name.replace("_", "."): value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }
    return parse_source_options({"kafka.bootstrap.servers": "b:1", "subscribe": "orders"} | named)


def raw_batch(source: SourceOptions, schema: StructType, values: list[bytes | None]) -> Any:
    """What the reader makes of such records, at offsets from 100 on; the keys are `k0`, `k1`..."""
    kinds = arrow_schema(raw_schema(schema, source))
    count = len(values)
    columns = {
        "key": [b"k%d" % number for number in range(count)],
        "value": values,
        "topic": ["orders"] * count,
        "partition": [0] * count,
        "offset": list(range(100, 100 + count)),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in kinds], schema=kinds
    )


def decode(
    values: list[bytes | None], schema: StructType | None = None, **given: object
) -> list[dict[str, Any]]:
    """The rows of one batch, all validated by Arrow."""
    source = options(**given)
    decoding: ResolvedDecoding | None
    if schema is None:
        decoding = resolve_decoding(source.decode)
        schema = row_schema(source, decoding)
    decoding = find_decoding(source, schema)
    assert decoding is not None
    task = TaskDecoding(decoding, arrow_schema(schema), ORDERS)
    rows: list[dict[str, Any]] = []
    for batch in task.batches([raw_batch(source, schema, values)]):
        batch.validate(full=True)
        rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def values_of(values: list[bytes | None], **given: object) -> list[Any]:
    """The column `value` alone."""
    return [row["value"] for row in decode(values, **given)]
