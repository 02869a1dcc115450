"""Avro of a schema registry on the page of records: schemas by their id, and data decoded by them.

Needs fastavro (the extra `decode`). Schemas and data come from others: a schema that could make
little data into much is not used, see `shape_of`.
"""

from __future__ import annotations

import base64
import http.client
import importlib
import io
import json
import ssl
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.console import parse_registry_url
from ottla.broker.observability.console.record_views import (
    FRAME_BYTES,
    cut,
    json_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.runtime.tasks import WorkerPool

# Of the registry, for the schemas of one page; a page is waited for no longer than this.
DEADLINE_SECONDS = 2.0
MAX_RESPONSE_BYTES = 256 << 10
# Schemas that one page looks up. Topics have a few; the ids come from producers.
MAX_LOOKED_UP = 10
# Schemas that are kept: some 50 kB each when parsed, so 10 MB.
MAX_KEPT = 200
# How long an id without a usable schema is not requested again.
RETRY_SECONDS = 30.0
UNKNOWN = "the registry does not know it"
# Of a schema: its depth as JSON, and the values that it has without data.
MAX_DEPTH = 64
MAX_VALUES = 1000
# Of a field or a symbol: the text of a record repeats them where its data has a byte or none.
MAX_NAME_CHARACTERS = 200
# Values of one record, which hold the interpreter for about 5 ms.
MAX_DECODED_VALUES = 20_000


class UnusableSchema(Exception):
    """Why data is not decoded by a schema; the text names the cause."""


class Shape(NamedTuple):
    """What data of a type costs: the least bytes, the most values in them without arrays and maps,
    and the most values that one more byte of an array or map can add."""

    least_bytes: int
    values: int
    values_per_byte: float


class Schema(NamedTuple):
    """A parsed schema, or why there is none; until when that is believed."""

    parsed: Any
    shape: Shape
    problem: str = ""
    until: float = float("inf")


_NOTHING = Shape(0, 0, 0)
_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8}
_PRIMITIVES |= {"bytes": 1, "string": 1}


def shape_of(schema: Any, named: dict[str, Shape | None] | None = None) -> Shape:
    """The shape of a parsed schema (full names, no namespaces).

    Raises UnusableSchema for a recursive one, for an array of items without bytes, of which a few
    bytes of data could be any number, and for long names.
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        branches = [shape_of(each, named) for each in schema] or [_NOTHING]
        return Shape(
            1 + min(each.least_bytes for each in branches),
            _bounded(1 + max(each.values for each in branches)),
            max(each.values_per_byte for each in branches),
        )
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return shape_of(kind, named)
    if kind in _PRIMITIVES:
        return Shape(_PRIMITIVES[kind], 1, 0)
    if isinstance(schema, str):
        found = named.get(schema)
        if found is None:
            raise UnusableSchema("it is recursive, or has references")
        return found
    if kind in ("array", "map"):
        item = shape_of(schema["items" if kind == "array" else "values"], named)
        least = item.least_bytes + (kind == "map")
        if not least:
            raise UnusableSchema("it has an array of items without bytes")
        return Shape(1, 1, (item.values + 1) / least + item.values_per_byte)
    named[schema["name"]] = None
    if kind == "record":
        _check_names(field["name"] for field in schema["fields"])
        fields = [shape_of(field["type"], named) for field in schema["fields"]]
        made = Shape(
            sum(each.least_bytes for each in fields),
            _bounded(1 + sum(each.values for each in fields)),
            max((each.values_per_byte for each in fields), default=0),
        )
    elif kind == "fixed":
        made = Shape(int(schema["size"]), 1, 0)
    elif kind == "enum":
        _check_names(schema["symbols"])
        made = Shape(1, 1, 0)
    else:
        raise UnusableSchema(f"it has the unknown type {kind[:100]}")
    named[schema["name"]] = made
    return made


def _check_names(names: Iterable[str]) -> None:
    if max(map(len, names), default=0) > MAX_NAME_CHARACTERS:
        raise UnusableSchema(f"it has names of more than {MAX_NAME_CHARACTERS} characters")


def _bounded(values: int) -> int:
    if values > MAX_VALUES:
        raise UnusableSchema(f"it has more than {MAX_VALUES} fields")
    return values


class SchemaRegistry:
    """The schemas of one registry by id. The look-ups of one page run in one worker thread."""

    def __init__(self, url: str, user_info: str | None, workers: WorkerPool) -> None:
        """`user_info` is `user:password`. Raises ConfigError for a URL that is not HTTP."""
        parts = parse_registry_url(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._secure = parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user_info:
            encoded = base64.b64encode(user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._workers = workers
        self._schemas: OrderedDict[int, Schema] = OrderedDict()

    async def decode(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Decode the keys and values of a page that have `raw` bytes, and remove those. Returns a
        sentence for each schema that could not be used."""
        framed = [row[part] for row in rows for part in ("key", "value") if row[part]]
        framed = [data for data in framed if "raw" in data]
        return await self._workers.run(self._decode, framed) if framed else []

    def _decode(self, framed: Sequence[dict[str, Any]]) -> list[str]:
        """In a worker thread."""
        deadline = monotonic() + DEADLINE_SECONDS
        problems: dict[int, str] = {}
        asked = 0
        for data in framed:
            raw = data.pop("raw")
            schema_id = int.from_bytes(raw[1:FRAME_BYTES])
            schema = self._schemas.get(schema_id)
            if schema is None or schema.until < monotonic():
                asked += 1
                schema = self._looked_up(schema_id, deadline) if asked <= MAX_LOOKED_UP else None
            if schema is None:
                problems[schema_id] = f"the page has more than {MAX_LOOKED_UP} new ones"
                continue
            try:
                text = decoded(schema, raw[FRAME_BYTES:])
            except UnusableSchema as error:
                if str(error) == UNKNOWN:
                    # Any bytes can begin as data with a schema does: nothing is missing then.
                    data["note"] = f"not decoded: the registry has no schema {schema_id}"
                else:
                    problems[schema_id] = str(error)
                continue
            data |= {"kind": f"Avro, schema {schema_id}", "text": cut(text, len(raw))}
        return [
            f"Data of schema {schema_id} is not decoded: {problem}."
            for schema_id, problem in list(problems.items())[:MAX_LOOKED_UP]
        ]

    def _looked_up(self, schema_id: int, deadline: float) -> Schema:
        try:
            schema = parsed(self._response(schema_id, deadline))
        except UnusableSchema as error:
            schema = Schema(None, _NOTHING, str(error), monotonic() + RETRY_SECONDS)
        self._schemas.pop(schema_id, None)
        self._schemas[schema_id] = schema
        if len(self._schemas) > MAX_KEPT:
            self._schemas.popitem(last=False)
        return schema

    def _response(self, schema_id: int, deadline: float) -> bytes:
        """Raises UnusableSchema. Redirects are not followed: the password is for this host."""
        left = deadline - monotonic()
        if left <= 0:
            raise UnusableSchema(f"the registry did not respond in {DEADLINE_SECONDS:g} s")
        connection = (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=left, context=ssl.create_default_context()
            )
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=left)
        )
        try:
            connection.request(
                "GET", f"{self._path}/schemas/ids/{schema_id}", headers=self._headers
            )
            response = connection.getresponse()
            body = bytearray()
            while piece := response.read1(16 << 10):
                body += piece
                if len(body) > MAX_RESPONSE_BYTES:
                    raise UnusableSchema(f"it is longer than {MAX_RESPONSE_BYTES >> 10} KiB")
                if monotonic() > deadline:
                    raise TimeoutError
        except TimeoutError:
            raise UnusableSchema(
                f"the registry did not respond in {DEADLINE_SECONDS:g} s"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnusableSchema(f"the registry cannot be reached ({reason})") from None
        finally:
            connection.close()
        if response.status == 404:
            raise UnusableSchema(UNKNOWN)
        if response.status != 200:
            raise UnusableSchema(f"the registry responded with HTTP {response.status}")
        return bytes(body)


def parsed(body: bytes) -> Schema:
    """The schema of a registry's response. Raises UnusableSchema."""
    fastavro = _fastavro()
    try:
        found = json.loads(body)
        kind = found.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise UnusableSchema(f"it is of the type {str(kind)[:20]}, not Avro")
        if found.get("references"):
            raise UnusableSchema("it has references to other schemas")
        schema = json.loads(found["schema"])
        if _depth(schema) > MAX_DEPTH:
            raise UnusableSchema(f"it is nested deeper than {MAX_DEPTH}")
        schema = fastavro.parse_schema(schema)
        return Schema(schema, shape_of(schema))
    except UnusableSchema:
        raise
    except Exception as error:  # fastavro and json raise errors of many types
        raise UnusableSchema(f"it is not an Avro schema ({type(error).__name__})") from None


def decoded(schema: Schema, data: bytes) -> str:
    """JSON of data by a schema. Raises UnusableSchema."""
    if schema.problem:
        raise UnusableSchema(schema.problem)
    if len(data) * schema.shape.values_per_byte > MAX_DECODED_VALUES:
        raise UnusableSchema("a record can have too many values for a page")
    source = io.BytesIO(data)
    try:
        value = _fastavro().schemaless_reader(source, schema.parsed, None)
        text = json_text(value)
    except Exception as error:  # bytes of a producer can be invalid in any way
        raise UnusableSchema(
            f"a record does not have this schema ({type(error).__name__})"
        ) from None
    if source.tell() != len(data):
        raise UnusableSchema("a record has bytes that are not of this schema")
    return text


def _depth(value: Any) -> int:
    """The depth of nested lists and objects."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError:
        raise UnusableSchema("fastavro is not installed: pip install 'ottla[decode]'") from None
