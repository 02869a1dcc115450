"""One decoder for a field: bytes to a parsed value, and parsed values to a column."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from pyspark_ottla import errors
from pyspark_ottla.decode import protobuf_schema
from pyspark_ottla.decode.avro import AvroReader, avro_builder
from pyspark_ottla.decode.bad_record import BadRecordError
from pyspark_ottla.decode.builders import ArrowType, Build
from pyspark_ottla.decode.json_text import json_builder, json_parser
from pyspark_ottla.decode.protobuf import ProtobufReader, protobuf_builder, read_indexes
from pyspark_ottla.decode.registry import Registry, Schema, SchemaNotFoundError, registry_of
from pyspark_ottla.decode.resolved import ResolvedField
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.decode_options import AVRO, JSON

HEADER_BYTES = 5
# Readers kept: one for each schema id of a partition; more ids are read again from the registry's
# own cache.
READERS_MAX = 200
# Ids that the registry does not know; after so many of them a task looks up no more: the bytes
# are something else, and each would be a request.
UNKNOWN_IDS_MAX = 20

Parse = Callable[[bytes, int], Any]


class FieldDecoder(Protocol):
    """`parse` raises BadRecordError; `build` raises what `builders.VALUE_ERRORS` names."""

    build: Build

    def parse(self, data: bytes) -> Any: ...


def field_decoder(resolved: ResolvedField, kind: ArrowType) -> FieldDecoder:
    """The decoder of a field for a column of that type."""
    if resolved.options.format == JSON:
        return JsonDecoder(resolved, kind)
    if resolved.options.format == AVRO:
        return AvroDecoder(resolved, kind)
    return ProtobufDecoder(resolved, kind)


def split_id(data: bytes) -> int:
    """The schema id in front of a value; raises BadRecordError."""
    if len(data) < HEADER_BYTES or data[0]:
        raise BadRecordError(
            "has no schema id in front",
            "If the producers use no schema registry, set the option framing of the field to none",
        )
    return int.from_bytes(data[1:HEADER_BYTES], "big")


class _Registered:
    """The schemas of the ids that records have in front."""

    def __init__(self, resolved: ResolvedField) -> None:
        self._format = resolved.options.format
        self._registry: Registry | None = None
        if resolved.registry is not None:
            self._registry = registry_of(resolved.registry)
        self._unknown: set[int] = set()

    @property
    def is_there(self) -> bool:
        return self._registry is not None

    def schema(self, schema_id: int) -> Schema:
        """Raises BadRecordError for an id without a schema of the format."""
        registry = self._registry
        assert registry is not None
        if schema_id in self._unknown or len(self._unknown) >= UNKNOWN_IDS_MAX:
            raise self._not_known(schema_id, registry)
        try:
            schema = registry.by_id(schema_id, self._format)
        except SchemaNotFoundError:
            self._unknown.add(schema_id)
            raise self._not_known(schema_id, registry) from None
        if schema.format != self._format:
            raise BadRecordError(
                f"has schema id {schema_id}, which is a schema of {schema.format} and not of "
                f"{self._format}"
            )
        return schema

    @staticmethod
    def _not_known(schema_id: int, registry: Registry) -> BadRecordError:
        return BadRecordError(
            f"has schema id {schema_id}, which {registry.name} does not know",
            "Set schema.registry.url to the registry of the producers, or register the schema "
            "there again",
            errors.UNKNOWN_SCHEMA_ID,
        )


class JsonDecoder:
    """JSON; of a schema id in front only the length matters."""

    def __init__(self, resolved: ResolvedField, kind: ArrowType) -> None:
        self.build: Build = json_builder(kind)
        self._parse: Parse = json_parser(kind)
        self._framed = resolved.options.framed

    def parse(self, data: bytes) -> Any:
        if not self._framed:
            return self._parse(data, 0)
        split_id(data)
        return self._parse(data, HEADER_BYTES)


class AvroDecoder:
    """Avro: what a record's own schema has written is read as the schema of the columns."""

    def __init__(self, resolved: ResolvedField, kind: ArrowType) -> None:
        assert resolved.schema is not None
        self._schema = resolved.schema
        self.build: Build = avro_builder(resolved.avro(), kind)
        self._framed = resolved.options.framed
        self._registered = _Registered(resolved)
        self._own = AvroReader(self._schema, self._schema)
        self._readers: OrderedDict[int, AvroReader | BadRecordError] = OrderedDict()

    def parse(self, data: bytes) -> Any:
        if not self._framed:
            return self._own.parse(data, 0)
        schema_id = split_id(data)
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._reader_of(schema_id)
            if len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
        if isinstance(reader, BadRecordError):
            raise BadRecordError(reader.reason, reader.hint, reader.condition)
        return reader.parse(data, HEADER_BYTES)

    def _reader_of(self, schema_id: int) -> AvroReader | BadRecordError:
        if not self._registered.is_there:
            return self._own
        try:
            return AvroReader(self._registered.schema(schema_id), self._schema)
        except BadRecordError as error:
            return error
        except ConnectorError as error:
            if error.condition != errors.UNSUPPORTED_SCHEMA:
                raise
            return BadRecordError(
                f"has schema id {schema_id}, which cannot be read as the schema of the query: "
                f"{error.sentence}"
            )


class ProtobufDecoder:
    """Protobuf: field numbers make versions of a message compatible; its name is compared."""

    def __init__(self, resolved: ResolvedField, kind: ArrowType) -> None:
        message = protobuf_schema.message_of(resolved.files, resolved.options.message)
        self.build: Build = protobuf_builder(message, kind)
        self._reader = ProtobufReader(message)
        self._name = resolved.options.message
        self._framed = resolved.options.framed
        self._registered = _Registered(resolved)
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}

    def parse(self, data: bytes) -> Any:
        if not self._framed:
            return self._reader.parse(data, 0)
        schema_id = split_id(data)
        indexes, start = read_indexes(data, HEADER_BYTES)
        name = self._names.get((schema_id, indexes))
        if name is None:
            name = self._name_of(schema_id, indexes)
            if len(self._names) < READERS_MAX:
                self._names[schema_id, indexes] = name
        if name != self._name:
            raise BadRecordError(
                f"is a message {name}, and the query reads {self._name}",
                "Set the option message of the field, and read messages of several types in "
                "several queries",
            )
        return self._reader.parse(data, start)

    def _name_of(self, schema_id: int, indexes: tuple[int, ...]) -> str:
        if not self._registered.is_there:
            return self._name
        schema = self._registered.schema(schema_id)
        try:
            files = protobuf_schema.parse_registered(schema.text, schema.references)
            return protobuf_schema.name_of(files, indexes)
        except IndexError:
            raise BadRecordError(
                f"names a message {list(indexes)} that schema id {schema_id} does not have"
            ) from None
        except ConnectorError as error:
            if error.condition != errors.UNSUPPORTED_SCHEMA:
                raise
            raise BadRecordError(f"has schema id {schema_id}: {error.sentence}") from None
