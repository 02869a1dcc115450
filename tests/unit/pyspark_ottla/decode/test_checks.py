"""Columns that a format cannot give are found before any task runs."""

import pytest
from pyspark.sql.types import DayTimeIntervalType, IntegerType, StructField, StructType

from pyspark_ottla.decode.checks import check_decoders
from pyspark_ottla.decode.resolved import resolve_decoding
from pyspark_ottla.errors import ConnectorError
from tests.doubles.decoded_columns import options


def test_json_has_no_intervals() -> None:
    decoding = resolve_decoding(options(value_format="json").decode)
    assert decoding is not None
    inner = StructType([StructField("a", DayTimeIntervalType())])
    with pytest.raises(ConnectorError, match=r"INVALID_SCHEMA.*nothing for the type duration"):
        check_decoders(decoding, StructType([StructField("value", inner)]))
    check_decoders(decoding, StructType([StructField("offset", IntegerType())]))
