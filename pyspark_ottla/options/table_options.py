"""The options of a SQL table, which Spark hands to a Python source only when the table is created.

`CREATE TABLE t USING ottla OPTIONS (...)` asks the source for the columns and keeps those in the
catalog. A query gets the columns back and no options. They are therefore kept with the first
column. The columns of other reads stay as they are: only the definition of a table gives its
options with the prefix `option.`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.values import plain_names

KEY = "ottla.options"
PREFIX = "option."
# Parts of the names of options that hold a secret; as Spark's own spark.redaction.regex, and JAAS.
SECRETS = ("password", "secret", "jaas", "access.key", "key.pem", "user.info")


def with_table_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """The columns, with the options if they are those of a table. Raises ConnectorError for a
    secret in plain text, which the catalog would show to every user of the table."""
    if not any(name.lower().startswith(PREFIX) for name in given):
        return schema
    options = plain_names(given)
    for name, value in sorted(options.items()):
        if any(part in name for part in SECRETS) and "${" not in value and value:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"The option {name} of a table has a secret in plain text, which the catalog keeps",
                "Use ${env:NAME} or ${file:/path:key}, which each executor resolves",
            )
    first, *others = schema.fields
    kept = StructField(first.name, first.dataType, first.nullable, {KEY: json.dumps(options)})
    return StructType([kept, *others])


def split_schema(
    schema: StructType, given: Mapping[str, str]
) -> tuple[StructType, Mapping[str, str]]:
    """The columns without the options of a table, and the options with them; those of the query
    win."""
    kept = [field.metadata[KEY] for field in schema.fields if KEY in (field.metadata or {})]
    if not kept:
        return schema, given
    plain = [StructField(field.name, field.dataType, field.nullable) for field in schema.fields]
    return StructType(plain), {**json.loads(kept[0]), **plain_names(given)}
