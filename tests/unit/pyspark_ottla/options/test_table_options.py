"""The options of a SQL table: kept with its columns, without secrets."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.table_options import split_schema, with_table_options

COLUMNS = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


def test_options_of_a_table_come_back_with_its_columns() -> None:
    given = {"option.Subscribe": "t", "subscribe": "t", "option.kafka.bootstrap.servers": "b:1"}
    kept = StructType.fromJson(with_table_options(COLUMNS, given).jsonValue())
    schema, options = split_schema(kept, {"subscribe": "of the query"})
    assert schema == COLUMNS
    assert options == {"subscribe": "of the query", "kafka.bootstrap.servers": "b:1"}


def test_the_columns_of_other_reads_stay_as_they_are() -> None:
    given = {"subscribe": "t", "kafka.sasl.password": "p"}
    assert with_table_options(COLUMNS, given) is COLUMNS
    assert split_schema(COLUMNS, given) == (COLUMNS, given)


@pytest.mark.parametrize(
    "name", ["kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.key.pem"]
)
def test_a_secret_in_plain_text_is_refused(name: str) -> None:
    with pytest.raises(ConnectorError, match=rf"{name} of a table has a secret"):
        with_table_options(COLUMNS, {f"option.{name}": "hidden"})
    with_table_options(COLUMNS, {f"option.{name}": "${env:HIDDEN}"})
