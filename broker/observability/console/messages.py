"""Records as a person reads them: short, decoded as far as their bytes tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.protocol.records.record import Record

# Of one batch.
MAX_DECOMPRESSED_BYTES = 8 << 20
# Of one key, value or header.
MAX_SHOWN_BYTES = 4096
MAX_HEADERS = 50

# Confluent's framing: a zero byte, four bytes of the schema's number, then the data.
_FRAME_BYTES = 5


def matches(record: Record, key: str, value: str) -> bool:
    """Whether key and value contain these texts; an empty text is in everything."""
    return _contains(record.key, key) and _contains(record.value, value)


def _contains(data: bytes | None, text: str) -> bool:
    return not text or (data is not None and text.encode() in data)


def record_row(record: Record, partition: int) -> dict[str, Any]:
    """A record for the page."""
    return {
        "partition": partition,
        "offset": record.offset,
        "time_ms": record.timestamp,
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [
            [name[:200], shown(value)] for name, value in list(record.headers)[:MAX_HEADERS]
        ],
    }


def shown(data: bytes | None) -> dict[str, Any] | None:
    """Bytes as a person reads them: what kind, the text, their number; null for null."""
    if data is None:
        return None
    if len(data) >= _FRAME_BYTES and data[0] == 0 and _text(data[_FRAME_BYTES:]) is None:
        kind = f"schema {int.from_bytes(data[1:_FRAME_BYTES])}"
        return {"kind": kind, "text": _hexadecimal(data[_FRAME_BYTES:]), "bytes": len(data)}
    text = _text(data)
    if text is None:
        return {"kind": "bytes", "text": _hexadecimal(data), "bytes": len(data)}
    kind = "text"
    if text[:1] in ("{", "[") and len(data) <= MAX_SHOWN_BYTES:
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False, indent=1)
            kind = "JSON"
        except (ValueError, RecursionError):
            pass
    return {"kind": kind, "text": text[:MAX_SHOWN_BYTES], "bytes": len(data)}


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
    return data[: MAX_SHOWN_BYTES // 4].hex(" ", 1)
