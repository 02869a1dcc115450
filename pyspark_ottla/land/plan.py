"""What landing does, as plain data: options, tables, and changes of a schema. No Spark session."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

PARQUET, ICEBERG, DELTA = "parquet", "iceberg", "delta"
FORMATS = (PARQUET, ICEBERG, DELTA)
FAIL, DROP, KEEP = "fail", "drop", "keep"
BAD_RECORDS = (FAIL, DROP, KEEP)
# A folder that readers of tables skip, as all that begin with an underscore.
CHECKPOINTS = "_checkpoints"
# The catalog of Iceberg's tables, whose warehouse is the folder to land in. It is not "ottla":
# Spark takes the name of a source, and what follows it, for a query of files.
ICEBERG_CATALOG = "ottla_tables"

DATE, HOUR = "date", "hour"
PATH = re.compile(r"[^\W\d][\w.]*")


@dataclass(frozen=True, slots=True)
class LandOptions:
    """All that `ottla spark land` was given."""

    topics: tuple[str, ...]
    to: str
    format: str = PARQUET
    partition_by: tuple[str, ...] = ()
    available_now: bool = False
    trigger_seconds: int = 60
    checkpoint: str = ""  # a folder for those of all tables
    bad_records: str = FAIL
    file_records_max: int = 1_000_000
    batch_bytes_max: int = 1 << 30
    skip_missing: bool = False
    compacts: bool = False
    source: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> LandOptions:
        found: dict[str, Any] = json.loads(text)
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(found) - known)
        if unknown:
            raise ConnectorError(
                errors.UNKNOWN_OPTION,
                f"The landing job does not know {', '.join(unknown)}",
                "The command and the connector are of different versions; ship the package again",
            )
        found["topics"] = tuple(found["topics"])
        found["partition_by"] = tuple(found.get("partition_by", ()))
        return cls(**found)

    @property
    def is_decoded(self) -> bool:
        chosen = {name.lower().replace(".", ""): value for name, value in self.source.items()}
        formats = (chosen.get("valueformat", ""), chosen.get("keyformat", ""))
        return any(found.lower() in ("json", "avro", "protobuf") for found in formats)

    @property
    def checks_text(self) -> bool:
        """Whether values are text that is not decoded further, so that bytes which are none are
        found by the job."""
        chosen = {name.lower().replace(".", ""): value for name, value in self.source.items()}
        is_text = chosen.get("valueformat", "").lower() == "string"
        return is_text and self.bad_records != FAIL

    def table(self, topic: str) -> str:
        """The folder of a topic's table; for Iceberg its name."""
        if self.format == ICEBERG:
            return f"{ICEBERG_CATALOG}.`{topic}`"
        return f"{self.to.rstrip('/')}/{topic}"

    def checkpoint_of(self, topic: str) -> str:
        root = self.checkpoint.rstrip("/") or f"{self.to.rstrip('/')}/{CHECKPOINTS}"
        return f"{root}/{topic}"

    def source_options(self, topic: str, has_limits: bool = True) -> dict[str, str]:
        """Those of the source; what the user has set wins. Spark has limits since version 4.2."""
        options = {"startingOffsets": "earliest", "subscribe": topic}
        if has_limits:
            options["maxBytesPerTrigger"] = str(self.batch_bytes_max)
        if self.bad_records != FAIL:
            if self.is_decoded:
                options["mode"] = "permissive"
            options["onDecodeError"] = "null"  # of times that no calendar has
        options |= self.source
        if self.checks_text:
            names = [name for name in options if name.lower().replace(".", "") == "valueformat"]
            options |= dict.fromkeys(names, "raw")
        return options


def partition_column(name: str) -> tuple[str, str | None]:
    """A column to partition by and the SQL that makes it; None for one that the table has.

    `date` and `hour` are of the timestamp, in UTC; `value.country` becomes `country`.
    """
    if PATH.fullmatch(name) is None:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"A table cannot be partitioned by {name!r}",
            "Use date, hour, a column such as topic, or a field such as value.country",
        )
    if name == DATE:
        return name, "CAST(timestamp AS DATE)"
    if name == HOUR:
        return name, "HOUR(timestamp)"
    if "." in name:
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        return name.rpartition(".")[2], quoted
    return name, None


def schema_conflict(table: StructType, query: StructType) -> str | None:
    """Why rows of the query cannot be added to the table; None if they can.

    New columns and fields can be added, and those that are gone are null from now on. A type
    cannot change.
    """
    return _conflict(table, query, "")


def _conflict(old: DataType, new: DataType, path: str) -> str | None:
    if isinstance(old, StructType) and isinstance(new, StructType):
        types = {column.name: column.dataType for column in old.fields}
        for column in new.fields:
            name = f"{path}.{column.name}".lstrip(".")
            if column.name in types:
                found = _conflict(types[column.name], column.dataType, name)
                if found is not None:
                    return found
        return None
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _conflict(old.elementType, new.elementType, f"{path}[]")
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        return _conflict(old.valueType, new.valueType, f"{path}{{}}")
    if old.simpleString() == new.simpleString():
        return None
    return f"the column {path} is {old.simpleString()} there and {new.simpleString()} now"


def sentence_of(text: str) -> str:
    """The one sentence in what Spark reports of a failed query."""
    found = re.search(r"ConnectorError: (\[[A-Z_.]+\] .*)", text)
    if found is not None:
        return found.group(1).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:1000] if lines else "Spark gave no reason"
