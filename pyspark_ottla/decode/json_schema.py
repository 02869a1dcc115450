"""Schemas of JSON as Spark types: JSON Schema, or the JSON of a Spark schema (`df.schema.json()`).

Of JSON Schema the part is used that says where which types are; rules for values are the
producers' business. What has no type of its own in Spark is a string with its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

SCALARS: dict[str, type[DataType]] = {
    "string": StringType,
    "integer": LongType,
    "number": DoubleType,
    "boolean": BooleanType,
}
FORMATS: dict[str, type[DataType]] = {"date-time": TimestampType, "date": DateType}
# A schema that refers to itself at every level would have no end.
DEPTH_MAX = 100


def unsupported(what: str, hint: str = "") -> ConnectorError:
    return ConnectorError(errors.UNSUPPORTED_SCHEMA, f"The schema of the JSON {what}", hint)


def spark_type(text: str, references: Mapping[str, str]) -> DataType:
    """Raises ConnectorError for what is no schema."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unsupported(
            f"is no JSON: {error}",
            "Set it to a JSON Schema or to df.schema.json(); DDL goes into .schema(...)",
        ) from None
    if isinstance(found, dict) and found.get("type") == "struct" and "fields" in found:
        try:
            return StructType.fromJson(found)
        except Exception as error:  # pyspark's own, of many classes
            raise unsupported(f"is no schema of Spark: {error}") from None
    documents = {"": found}
    for name, reference in references.items():
        try:
            documents[name] = json.loads(reference)
        except (ValueError, RecursionError) as error:
            raise unsupported(f"refers to {name}, which is no JSON: {error}") from None
    return _Walk(documents).type_of(found, "", 0)


class _Walk:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def type_of(self, schema: Any, base: str, depth: int) -> DataType:
        if depth > DEPTH_MAX:
            raise unsupported(
                "contains itself, which no column can hold",
                "Read the text (value.format string), or name the columns with .schema(...)",
            )
        if not isinstance(schema, dict):
            return StringType()
        if "$ref" in schema:
            return self.type_of(*self._target(str(schema["$ref"]), base), depth + 1)
        for choice in ("oneOf", "anyOf"):
            real = [part for part in schema.get(choice, []) if part != {"type": "null"}]
            if len(real) == 1:
                return self.type_of(real[0], base, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            names = [name for name in kind if name != "null"]
            numbers = sorted(names) == ["integer", "number"]
            kind = "number" if numbers else names[0] if len(names) == 1 else None
        if kind == "object":
            return self._object(schema, base, depth)
        if kind == "array":
            return ArrayType(self.type_of(schema.get("items"), base, depth + 1))
        if kind == "string":
            return FORMATS.get(str(schema.get("format")), StringType)()
        return SCALARS.get(str(kind), StringType)()

    def _object(self, schema: dict[str, Any], base: str, depth: int) -> DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            fields = [
                StructField(name, self.type_of(part, base, depth + 1))
                for name, part in properties.items()
            ]
            return StructType(fields)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            return MapType(StringType(), self.type_of(others, base, depth + 1))
        return StringType()

    def _target(self, reference: str, base: str) -> tuple[Any, str]:
        """What `#/path`, `name` or `name#/path` refers to, and the document it is in."""
        name, _, path = reference.partition("#")
        base = name or base
        found = self._documents.get(base)
        for part in filter(None, path.split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise unsupported(f"refers to {reference}, which it does not have")
        return found, base
