"""The records of a partition as its consumers see them, from the batches of a replica."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from ottla.protocol.records.reader import read_records
from tests.simulation.cluster.history import Kept

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_COMMIT = 1
_HEADER_BYTES = 12  # base offset and length


def kept_records(batches: Iterable[bytes]) -> list[Kept]:
    """All data records of batches in the order of their offsets, and whether read_committed shows
    them: markers decide. What is open is not shown."""
    open_: dict[int, list[Kept]] = {}
    kept: list[Kept] = []
    for data in batches:
        producer_id, attributes = struct.unpack_from(">q", data, 43)[0], data[22]
        records = list(read_records(data, include_control=True))
        if attributes & _CONTROL:
            committed = struct.unpack_from(">h", records[0].key or b"", 2)[0] == _COMMIT
            for each in open_.pop(producer_id, []):
                kept.append(each._replace(visible=committed))
            continue
        found = [Kept(record.offset, bytes(record.value or b""), True) for record in records]
        if attributes & _TRANSACTIONAL:
            open_.setdefault(producer_id, []).extend(each._replace(visible=False) for each in found)
        else:
            kept.extend(found)
    for left in open_.values():
        kept.extend(left)
    return sorted(kept, key=lambda each: each.offset)


def batches_of(replica: Path) -> Iterator[bytes]:
    """The whole batches in the segments of a replica's directory."""
    for segment in sorted(replica.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + _HEADER_BYTES <= len(data):
            end = at + _HEADER_BYTES + struct.unpack_from(">i", data, at + 8)[0]
            if end > len(data) or end == at + _HEADER_BYTES:
                break
            yield data[at:end]
            at = end
