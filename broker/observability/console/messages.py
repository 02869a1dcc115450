"""A look at the records of one partition: few, short, decoded as far as their bytes tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.reader import read_records

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.protocol.records.record import Record
    from ottla.storage.log.log import Log

# What one look reads from the disk and unpacks at most; the page shows less.
MAX_READ_BYTES = 1 << 20
MAX_DECOMPRESSED_BYTES = 8 << 20
# Of one key, value or header.
MAX_SHOWN_BYTES = 4096
MAX_HEADERS = 50

# Confluent's framing: a zero byte, four bytes of the schema's number, then the data.
_FRAME_BYTES = 5


class Peek:
    """Reads committed records of partitions that this broker has a replica of."""

    def __init__(self, replicas: ReplicaManager, workers: WorkerPool) -> None:
        self._replicas = replicas
        self._workers = workers

    async def read(self, topic: str, index: int, offset: int, limit: int) -> dict[str, Any]:
        """At most `limit` records from `offset` on; -1 is the last ones.

        KafkaError where there is no such partition here or it cannot be read.
        """
        log = self._replicas.partition(topic[:249], index).log
        if log is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is not open on this broker."
            )
        start, end = log.log_start_offset, log.high_watermark
        first = max(start, end - limit if offset < 0 else min(offset, end))
        rows = await self._workers.run(lambda: _read(log, first, end, limit))
        return {
            "topic": topic,
            "partition": index,
            "start_offset": start,
            "end_offset": end,
            "first": first,
            "next": rows[-1]["offset"] + 1 if rows else first,
            "records": rows,
        }


def _read(log: Log, first: int, end: int, limit: int) -> list[dict[str, Any]]:
    """In a worker thread: appends may go on meanwhile."""
    rows: list[dict[str, Any]] = []
    left = MAX_READ_BYTES
    for batch in log.batches(first, end):
        left -= len(batch)
        for record in read_records(batch, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES):
            if first <= record.offset < end:
                rows.append(_row(record))
            if len(rows) >= limit:
                return rows
        if left <= 0:
            break
    return rows


def _row(record: Record) -> dict[str, Any]:
    return {
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
