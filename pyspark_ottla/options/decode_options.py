"""The options that turn bytes into columns: formats, schemas, and what becomes of bad records.

`value.format` and `valueFormat` are two spellings of one option, and so are those of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.registry_options import RegistryOptions, parse_registry
from pyspark_ottla.options.values import INT_MAX, OptionReader

JSON, AVRO, PROTOBUF = "json", "avro", "protobuf"
DECODED = (JSON, AVRO, PROTOBUF)
PLAIN = {"key": ("binary", "string"), "value": ("binary", "string", "confluent-strip")}

FAIL_FAST, DROP_MALFORMED, PERMISSIVE = "failfast", "dropmalformed", "permissive"
CONFLUENT, BARE = "confluent", "none"

PER_FIELD = ("format", "schema", "schema.id", "schema.version", "subject", "message", "framing")
DECODE_OPTIONS = (
    *(f"{which}.{name}" for which in ("key", "value") for name in PER_FIELD),
    "mode",
)


class FieldFormat(NamedTuple):
    """How the key or the value of a record is encoded, and where its schema is."""

    field: str  # key or value
    format: str
    schema: str = ""  # inline; wins over the registry for the columns
    message: str = ""  # of Protobuf, with its package
    subject: str = ""
    schema_id: int | None = None
    version: int | None = None  # None is the latest
    framed: bool = False  # the registry's five bytes lead


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to decode. Neither key nor value may be set: then nothing is decoded."""

    key: FieldFormat | None = None
    value: FieldFormat | None = None
    mode: str = FAIL_FAST
    registry: RegistryOptions | None = None

    @property
    def fields(self) -> list[FieldFormat]:
        return [part for part in (self.key, self.value) if part is not None]

    @property
    def is_permissive(self) -> bool:
        return bool(self.fields) and self.mode == PERMISSIVE


def parse_plain_format(reader: OptionReader, field: str) -> str:
    """What the reader of records itself makes of the field: bytes, unless it is plain text."""
    found = _format(reader, field)
    return "binary" if found in DECODED else found


def parse_decoding(reader: OptionReader, topic: str | None) -> DecodeOptions:
    """The formats that need a decoder; `topic` is the only one that is read, if there is one."""
    registry = parse_registry(reader)
    parts = {field: _parse_field(reader, field, topic, registry) for field in ("key", "value")}
    mode = reader.choice("mode", FAIL_FAST, (FAIL_FAST, DROP_MALFORMED, PERMISSIVE))
    if parts["key"] is None and parts["value"] is None and reader.text("mode") is not None:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            "The option mode is set, but neither the key nor the value is decoded",
            "Set value.format to json, avro or protobuf, or leave mode out; for text there is "
            "onDecodeError",
        )
    return DecodeOptions(parts["key"], parts["value"], mode, registry)


def _format(reader: OptionReader, field: str) -> str:
    names = (f"{field}.format", f"{field}Format")
    given = reader.given(names)
    if len(given) == 2:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"{names[0]} and {names[1]} are both set, and are the same option",
            "Set one of them",
        )
    name = given[0] if given else names[0]
    found = reader.choice(name, "binary", (*PLAIN[field], "raw", *DECODED))
    return "binary" if found == "raw" else found


def _parse_field(
    reader: OptionReader, field: str, topic: str | None, registry: RegistryOptions | None
) -> FieldFormat | None:
    chosen = _format(reader, field)
    options = [f"{field}.{name}" for name in PER_FIELD[1:]]
    if chosen not in DECODED:
        unused = [option for option in options if reader.text(option) is not None]
        if unused:
            raise ConnectorError(
                errors.CONFLICTING_OPTIONS,
                f"The option {unused[0]} is set, but {field}.format is {chosen}",
                f"Set {field}.format to json, avro or protobuf",
            )
        return None
    schema = reader.text(f"{field}.schema") or ""
    message = reader.text(f"{field}.message") or ""
    if message and chosen != PROTOBUF:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"The option {field}.message is set, but {field}.format is {chosen}",
            "Only Protobuf has messages; leave it out",
        )
    default = CONFLUENT if registry is not None else BARE
    framed = reader.choice(f"{field}.framing", default, (CONFLUENT, BARE)) == CONFLUENT
    subject = reader.text(f"{field}.subject") or ""
    schema_id = reader.integer(f"{field}.schema.id", minimum=0, maximum=INT_MAX)
    version = reader.integer(f"{field}.schema.version", minimum=1, maximum=INT_MAX)
    in_registry = subject or schema_id is not None or version is not None
    if in_registry and (schema or registry is None):
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS if schema else errors.MISSING_OPTION,
            f"The columns of the {field} are to be those of a schema in a registry, but "
            + (f"{field}.schema is set, too" if schema else "schema.registry.url is not set"),
        )
    if not schema and registry is not None and schema_id is None and not subject:
        if topic is None:
            raise ConnectorError(
                errors.MISSING_OPTION,
                f"Several topics are read, and no option sets whose schema the {field} has",
                f"Set {field}.subject, {field}.schema.id or {field}.schema; topics with different "
                "schemas are queries of their own",
            )
        subject = f"{topic}-{field}"  # TopicNameStrategy
    if chosen in (AVRO, PROTOBUF) and not schema and registry is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            f"{field}.format is {chosen}, but no option sets the schema",
            f"Set {field}.schema or schema.registry.url",
        )
    return FieldFormat(field, chosen, schema, message, subject, schema_id, version, framed)
