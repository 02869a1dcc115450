"""What the driver finds out about a format once, and sends to the tasks: plain data.

The id of a registered schema is in the metadata of its column, so that every part of a query has
the same one, also while new versions are registered.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import DataType, StringType, StructField, StructType

from pyspark_ottla import errors
from pyspark_ottla.decode import avro_schema, json_schema, protobuf_schema
from pyspark_ottla.decode.registry import Registry, Schema, SchemaNotFoundError, registry_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.decode_options import AVRO, JSON, PROTOBUF, DecodeOptions, FieldFormat
from pyspark_ottla.options.registry_options import RegistryOptions

SCHEMA_ID = "ottla.schema.id"
CORRUPT = "_corrupt"


class ResolvedField(NamedTuple):
    """A format with its schema. Without a schema (JSON alone) the query's columns are it."""

    options: FieldFormat
    registry: RegistryOptions | None
    schema: Schema | None
    files: tuple[bytes, ...] = ()  # Protobuf's descriptors
    given: DataType | None = None  # by the user, where there is no schema

    @property
    def field(self) -> str:
        return self.options.field

    def data_type(self) -> DataType | None:
        """The type of the column; None if only the user's schema has it."""
        if self.schema is None:
            return self.given
        if self.options.format == AVRO:
            return avro_schema.spark_type(self.avro())
        if self.options.format == JSON:
            return json_schema.spark_type(self.schema.text, dict(self.schema.references))
        message = protobuf_schema.message_of(self.files, self.options.message)
        return protobuf_schema.spark_type(message)

    def avro(self) -> avro_schema.AvroSchema:
        assert self.schema is not None
        return avro_schema.parse(self.schema.text, self.schema.references)[1]

    def column(self) -> StructField | None:
        kind = self.data_type()
        if kind is None:
            return None
        found = None if self.schema is None else self.schema.schema_id
        return StructField(self.field, kind, True, {} if found is None else {SCHEMA_ID: found})


class ResolvedDecoding(NamedTuple):
    """The formats of key and value, those that need a decoder."""

    fields: tuple[ResolvedField, ...]
    mode: str


def resolve_decoding(
    options: DecodeOptions, query_schema: StructType | None = None
) -> ResolvedDecoding | None:
    """Fetches what is to be fetched; None if nothing is decoded. Raises ConnectorError.

    `query_schema` has the ids of the schemas that the query was planned with.
    """
    if not options.fields:
        return None
    pinned: dict[str, int] = {}
    for column in query_schema.fields if query_schema is not None else []:
        if isinstance(column.metadata, dict) and SCHEMA_ID in column.metadata:
            pinned[column.name] = int(column.metadata[SCHEMA_ID])
    fields = (_resolve(part, options.registry, pinned.get(part.field)) for part in options.fields)
    return ResolvedDecoding(tuple(fields), options.mode)


def _resolve(
    part: FieldFormat, registry: RegistryOptions | None, pinned: int | None
) -> ResolvedField:
    check_library(part.format)
    if part.schema:
        schema: Schema | None = Schema(part.format, part.schema)
        files = protobuf_schema.parse_inline(part.schema) if part.format == PROTOBUF else []
    elif registry is not None:
        schema = _registered(registry_of(registry), part, pinned)
        files = (
            protobuf_schema.parse_registered(schema.text, schema.references)
            if part.format == PROTOBUF
            else []
        )
    else:
        return ResolvedField(part, registry, None)
    found = ResolvedField(part, registry, schema, tuple(files))
    if part.format == PROTOBUF:  # the first message has a name from now on
        name = protobuf_schema.message_of(files, part.message).full_name
        found = found._replace(options=part._replace(message=name))
    return found


def _registered(registry: Registry, part: FieldFormat, pinned: int | None) -> Schema:
    schema_id = part.schema_id if pinned is None else pinned
    try:
        if schema_id is not None:
            what = f"schema id {schema_id}"
            schema = registry.by_id(schema_id, part.format)
        else:
            what = f"subject {part.subject}" + (f" version {part.version}" if part.version else "")
            schema = registry.by_subject(part.subject, part.version, part.format)
    except SchemaNotFoundError:
        raise ConnectorError(
            errors.UNKNOWN_SUBJECT if schema_id is None else errors.UNKNOWN_SCHEMA_ID,
            f"There is no {what} in {registry.name}, which the {part.field} is to be decoded with",
            f"Register the schema, or set {part.field}.subject, {part.field}.schema.id or "
            f"{part.field}.schema",
        ) from None
    if schema.format != part.format:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"{part.field}.format is {part.format}, but {what} in {registry.name} is a schema of "
            f"{schema.format}",
            f"Set {part.field}.format to {schema.format}",
        )
    return schema


def check_library(format_: str) -> None:
    """Raises ConnectorError if this Python lacks what the format needs."""
    import importlib
    import platform
    import sys

    package = {AVRO: "fastavro", PROTOBUF: "google.protobuf"}.get(format_)
    if package is None:
        return
    try:
        importlib.import_module(package)
    except ImportError as error:
        name = package.removeprefix("google.")
        raise ConnectorError(
            errors.MISSING_DEPENDENCY,
            f"Decoding {format_} needs the package {name}, which the Python of {platform.node()} "
            f"({sys.executable}) does not have: {error}",
            "Install it on the driver and on every executor (the extra ottla[decode] has it)",
        ) from None


def corrupt_column() -> StructField:
    """Why a record could not be decoded, and its bytes; null for a good one."""
    from pyspark.sql.types import BinaryType

    parts = [
        StructField("reason", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
    ]
    return StructField(CORRUPT, StructType(parts))
