"""Records as the console shows them: as text, JSON, bytes or Avro, cut to what a page has room for.

Everything here runs in worker threads; bytes of producers are never trusted to be what they claim.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.protocol.records.record import Record

#: How keys and values are read: `auto` takes what fits.
VIEWS = ("auto", "text", "json", "bytes", "avro")

# Of one key, value or header.
MAX_SHOWN_BYTES = 4096
MAX_HEXADECIMAL_BYTES = MAX_SHOWN_BYTES // 4
MAX_HEADERS = 50
# Of one header, so that those of a record take little more than key and value.
MAX_HEADER_CHARACTERS = 200
# JSON that is longer is shown in lines.
LINE_CHARACTERS = 80

# JSON of a record that is parsed to be shown in lines, and data that is decoded by a schema.
MAX_PARSED_BYTES = 16 << 10

# Of a key or value in a file: control characters take six times their bytes there.
MAX_WHOLE_BYTES = 1 << 20

# Confluent's framing: a zero byte, four bytes of the schema's id, then the data.
FRAME_BYTES = 5
LONG_BYTES = 8


def matches(record: Record, key: str, value: str) -> bool:
    """Whether key and value contain these texts; an empty text is in everything."""
    return _contains(record.key, key) and _contains(record.value, value)


def _contains(data: bytes | None, text: str) -> bool:
    return not text or (data is not None and text.encode() in data)


def record_row(
    record: Record, partition: int, view: str = "auto", *, frames: bool = False
) -> dict[str, Any]:
    """A record for the page. With `frames`, data with the id of a schema keeps its bytes under
    `raw`, to be decoded."""
    headers = list(record.headers)
    return {
        "partition": partition,
        "offset": record.offset,
        "time_ms": record.timestamp,
        "key": shown(record.key, view, frames=frames),
        "value": shown(record.value, view, frames=frames),
        "headers": [
            [name[:MAX_HEADER_CHARACTERS], _cut(shown(value))]
            for name, value in headers[:MAX_HEADERS]
        ],
        "more_headers": max(0, len(headers) - MAX_HEADERS),
    }


def _cut(header: dict[str, Any] | None) -> dict[str, Any] | None:
    if header is None or len(header["text"]) <= MAX_HEADER_CHARACTERS:
        return header
    return {**header, "text": cut(header["text"], header["bytes"], MAX_HEADER_CHARACTERS)}


def cut(text: str, size: int, most: int = MAX_SHOWN_BYTES) -> str:
    """The beginning of a text that is longer than `most`, with the bytes of the whole data."""
    return text if len(text) <= most else text[:most] + _rest(size)


def _rest(size: int) -> str:
    return f" … ({size:,} bytes)"


def shown(data: bytes | None, view: str = "auto", *, frames: bool = False) -> dict[str, Any] | None:
    """Bytes as a person reads them: what kind, the text, their number; null for null."""
    if data is None:
        return None
    if view == "bytes":
        return _row(data, "bytes", _hexadecimal(data), MAX_HEXADECIMAL_BYTES)
    if view == "text":
        text = data[:MAX_SHOWN_BYTES].decode("utf-8", "replace")
        return _row(data, "text", text, MAX_SHOWN_BYTES)
    # Ids of schemas begin with 1.
    is_framed = len(data) >= FRAME_BYTES and data[0] == 0 and any(data[1:FRAME_BYTES])
    row = _framed(data, view) if is_framed else _plain(data, view)
    if is_framed and frames and view != "json" and len(data) <= MAX_PARSED_BYTES:
        row["raw"] = data
    elif view == "avro":
        row["kind"] = f"{row['kind']}, not Avro"
    return row


def _framed(data: bytes, view: str) -> dict[str, Any]:
    """Data that begins like Confluent's framing, which a number does as well: JSON is read behind
    the id, of everything else all bytes are shown. A long, as LongSerializer writes it, has no room
    for JSON that somebody would send."""
    row = _plain(data[FRAME_BYTES:], view)
    if row["kind"] != "JSON" or len(data) == LONG_BYTES:
        return _plain(data, view)
    schema_id = int.from_bytes(data[1:FRAME_BYTES])
    return {**row, "kind": f"schema {schema_id}, JSON", "bytes": len(data)}


def _plain(data: bytes, view: str) -> dict[str, Any]:
    text = _text(data)
    most = MAX_PARSED_BYTES if view == "json" else MAX_SHOWN_BYTES
    if len(data) <= most and data.lstrip()[:1] in (b"{", b"["):
        try:
            return _row(data, "JSON", json_text(json.loads(data)))
        except (ValueError, RecursionError):
            pass
    kind, whole = "text", MAX_SHOWN_BYTES
    if text is None:
        kind, text, whole = "bytes", _hexadecimal(data), MAX_HEXADECIMAL_BYTES
    return _row(data, f"{kind}, not JSON" if view == "json" else kind, text, whole)


def json_text(value: Any) -> str:
    """JSON for a page: in one line if it is short. Bytes and logical types of Avro are texts."""
    text = json.dumps(value, ensure_ascii=False, default=_as_text)
    if len(text) > LINE_CHARACTERS:
        text = json.dumps(value, ensure_ascii=False, indent=1, default=_as_text)
    return text


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _row(data: bytes, kind: str, text: str, whole_bytes: int = MAX_PARSED_BYTES) -> dict[str, Any]:
    """`text` is made of `whole_bytes` at the most: of longer data it is the beginning."""
    shown_text = cut(text, len(data))
    if len(data) > whole_bytes and shown_text == text:
        shown_text += _rest(len(data))
    return {"kind": kind, "text": shown_text, "bytes": len(data)}


def whole_row(record: Record, topic: str, partition: int) -> tuple[dict[str, Any], int]:
    """A record for a file, as a line of `ottla consume --json`, and its size; the row has the
    lengths of what is left out (`omitted`)."""
    line = json.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _json_value(record.key),
            "value": _json_value(record.value),
            "headers": [[header, _json_value(data)] for header, data in record.headers],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )
    where = {"partition": partition, "offset": record.offset, "time_ms": record.timestamp}
    parts = (record.key, record.value, *(data for _, data in record.headers))
    omitted = [len(data) for data in parts if data is not None and len(data) > MAX_WHOLE_BYTES]
    return {**where, "line": f"{line}\n", "size": len(line), "omitted": omitted}, len(line)


def _json_value(data: bytes | None) -> str | dict[str, str | int] | None:
    """Text, null, or {"base64": ...} for bytes that are not UTF-8; of longer ones the length."""
    if data is None:
        return None
    if len(data) > MAX_WHOLE_BYTES:
        return {"omitted_bytes": len(data)}
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _text(data: bytes) -> str | None:
    """UTF-8 without control characters; a character cut at the bound does not count."""
    head = data[: MAX_SHOWN_BYTES + 1]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(data) <= MAX_SHOWN_BYTES or error.start < MAX_SHOWN_BYTES - 3:
            return None
        text = head[: error.start].decode()
    if any(letter < " " and letter not in "\t\r\n" for letter in text):
        return None
    return text


def _hexadecimal(data: bytes) -> str:
    return data[:MAX_HEXADECIMAL_BYTES].hex(" ", 1)
