"""Records as lines: text, JSON, hexadecimal or raw bytes."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.runtime.printable import printable_lines
from ottla.cli.output import time_text, usage
from ottla.cli.values import typed_bytes
from ottla.protocol.records.record import Record

FORMATS = ("text", "json", "hex", "raw")

Formatter = Callable[[str, int, Record], bytes]


class LineOptions:
    """The parts before the value in the formats text and hex."""

    def __init__(
        self, key: bool, headers: bool, where: bool, timestamp: bool, separator: str
    ) -> None:
        self.key = key
        self.headers = headers
        self.where = where
        self.timestamp = timestamp
        self.separator = separator.replace("\\t", "\t")


def formatter(name: str, options: LineOptions) -> Formatter:
    """The function that formats (topic, partition, record) as a line with its end."""
    if name == "json":
        return _as_json
    if name == "raw":
        return lambda _topic, _partition, record: record.value or b""
    if name not in FORMATS:
        raise usage(f"--format {name} is not one of {', '.join(FORMATS)}.")
    as_text = readable if name == "text" else _as_hex

    def line(topic: str, partition: int, record: Record) -> bytes:
        parts: list[str] = []
        if options.where:
            parts.append(f"{topic}-{partition}@{record.offset}")
        if options.timestamp:
            parts.append(time_text(record.timestamp) or "-")
        if options.headers:
            shown = (f"{header}={as_text(value)}" for header, value in record.headers)
            parts.append(",".join(shown) or "-")
        if options.key:
            parts.append(as_text(record.key))
        parts.append(as_text(record.value))
        return typed_bytes(options.separator.join(parts) + "\n")

    return line


def for_terminal(show: Formatter) -> Formatter:
    """The same lines without control characters but tabs and line ends: records are not trusted to
    control the terminal of the person who reads them."""
    return lambda topic, partition, record: printable_lines(
        show(topic, partition, record).decode("utf-8", "backslashreplace")
    ).encode()


def readable(data: bytes | None) -> str:
    """UTF-8 unchanged, other bytes as \\x escapes, null as "null"."""
    return "null" if data is None else data.decode("utf-8", "backslashreplace")


def _as_hex(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


def _as_json(topic: str, partition: int, record: Record) -> bytes:
    import json

    value = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [[header, _json_value(data)] for header, data in record.headers],
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _json_value(data: bytes | None) -> str | dict[str, str] | None:
    """Text, null, or {"base64": ...} for bytes that are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode()}
