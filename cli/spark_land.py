"""The options of `ottla spark land` as its job reads them: one JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.cli.output import Failure, usage

CHECKPOINTS = "_checkpoints"
FORMATS = ("parquet", "iceberg", "delta")
BAD_RECORDS = ("fail", "drop", "keep")
DECODED = ("json", "avro", "protobuf")
VALUE_FORMATS = ("raw", "string", *DECODED)
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
MIB = 1 << 20
# A schema is some kilobytes; this is another file.
SCHEMA_BYTES_MAX = 4 * MIB


@dataclass(frozen=True, slots=True)
class LandRequest:
    """The command line."""

    topics: Sequence[str]
    to: str
    format: str
    partition_by: Sequence[str]
    available_now: bool
    trigger_seconds: int
    decode: str
    decode_key: str
    schema: Path | None
    schema_registry: str
    bad_records: str
    max_file_records: int
    max_batch_mib: int
    checkpoint: str
    options: Mapping[str, str]
    bootstrap: str
    properties: Mapping[str, str]
    skip_missing: bool = False
    compacts: bool = False


def land_options(request: LandRequest) -> str:
    """The JSON of `pyspark_ottla.land.plan.LandOptions`; raises Failure for wrong usage."""
    for name, value, choices in (
        ("--format", request.format, FORMATS),
        ("--decode", request.decode, VALUE_FORMATS),
        ("--decode-key", request.decode_key, VALUE_FORMATS),
        ("--bad-records", request.bad_records, BAD_RECORDS),
    ):
        if value not in choices:
            raise usage(f"{name} {value}: it can be {', '.join(choices)}")
    for topic in request.topics:
        if TOPIC_NAME.fullmatch(topic) is None or topic in (".", ".."):
            raise usage(f"{topic!r} is not the name of a topic")
    _check_checkpoint(request)
    if len(set(request.topics)) != len(request.topics):
        raise usage("a topic is named twice")
    if request.schema is not None and len(request.topics) > 1:
        raise usage("--schema is for one topic; land topics with different schemas one by one")
    return json.dumps(
        {
            "topics": list(request.topics),
            "to": request.to,
            "format": request.format,
            "partition_by": list(request.partition_by),
            "available_now": request.available_now,
            "trigger_seconds": request.trigger_seconds,
            "checkpoint": request.checkpoint,
            "bad_records": request.bad_records,
            "file_records_max": request.max_file_records,
            "batch_bytes_max": request.max_batch_mib * MIB,
            "skip_missing": request.skip_missing,
            "compacts": request.compacts,
            "source": _source_options(request),
        }
    )


def _check_checkpoint(request: LandRequest) -> None:
    """The folder of the checkpoints must not be the table of a topic."""
    to = request.to.rstrip("/")
    checkpoint = request.checkpoint.rstrip("/") or f"{to}/{CHECKPOINTS}"
    for topic in request.topics:
        table = f"{to}/{topic}"
        if f"{checkpoint}/".startswith(f"{table}/"):
            raise usage(
                f"the table of the topic {topic} would be {table}, where the checkpoints are; set "
                "--checkpoint to a folder elsewhere"
            )


def _source_options(request: LandRequest) -> dict[str, str]:
    source = {"kafka.bootstrap.servers": request.bootstrap}
    source |= {f"kafka.{name}": value for name, value in request.properties.items()}
    source["value.format"], source["key.format"] = request.decode, request.decode_key
    if request.schema is not None:
        if request.decode not in DECODED:
            raise usage(f"--schema is set, but --decode is {request.decode}")
        source["value.schema"] = _read_schema(request.schema)
    if request.schema_registry:
        source["schema.registry.url"] = request.schema_registry
    return source | dict(request.options)


def _read_schema(path: Path) -> str:
    """Text as it is; the bytes of a descriptor set in base64."""
    try:
        with path.open("rb") as file:
            content = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise Failure(f"cannot read the schema {path}: {error.strerror}") from None
    if len(content) > SCHEMA_BYTES_MAX:
        raise Failure(f"{path} is larger than a schema can be ({SCHEMA_BYTES_MAX} bytes)")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and "\0" not in text:
        return text
    import base64

    return base64.b64encode(content).decode()
