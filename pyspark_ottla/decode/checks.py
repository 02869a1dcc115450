"""What the driver checks of a decoding before any task runs."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pyspark_ottla import errors
from pyspark_ottla.decode.bad_record import BadValueError
from pyspark_ottla.decode.field_decoder import field_decoder
from pyspark_ottla.decode.resolved import ResolvedDecoding
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.read.schema import arrow_schema


def check_decoders(decoding: ResolvedDecoding, schema: StructType) -> None:
    """Raises ConnectorError if a column of the query has a type that its format cannot give."""
    columns = arrow_schema(schema)
    for part in decoding.fields:
        if part.field not in columns.names:
            continue
        try:
            field_decoder(part, columns.field(part.field).type)
        except BadValueError as error:
            raise ConnectorError(
                errors.INVALID_SCHEMA, f"The column {part.field} of the schema is wrong: {error}"
            ) from None
