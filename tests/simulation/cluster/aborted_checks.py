"""Checks the index of aborted transactions of a replica against the markers in its log."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, NamedTuple

from ottla.protocol.records.reader import read_records

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT = 0
# So many reads of each log are compared, and those of the first batch of each such transaction.
READS = 20


class Aborted(NamedTuple):
    """An aborted transaction, from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


def missing_aborted(log: Any, random: Random) -> str:
    """What a read_committed read of a slice does not list, though it overlaps; "" for nothing.

    A consumer would take the records of such a transaction for committed ones.
    """
    bases, aborted = _scan(log)
    reads = [(each.first_offset, 1) for each in aborted]
    for _ in range(min(READS, len(bases))):
        reads.append((random.choice(bases), random.choice([1, 300, 1500])))
    for offset, size in reads:
        read = log.read(offset, size, up_to=log.last_stable_offset, read_committed=True)
        if read.slice is None or not read.slice.length:
            continue
        end = _end_of(bytes(read.slice.read()))
        listed = {tuple(each) for each in read.aborted_transactions or []}
        for each in aborted:
            overlaps = each.last_offset >= offset and each.first_offset < end
            if overlaps and (each.producer_id, each.first_offset) not in listed:
                return f"a read of {offset} to {end - 1} does not list {each}"
    return ""


def _scan(log: Any) -> tuple[list[int], list[Aborted]]:
    """The base offsets of all batches, and the aborted transactions that begin in the log."""
    open_: dict[int, int] = {}
    bases: list[int] = []
    aborted: list[Aborted] = []
    for batch in log.batches(log.local_log_start_offset, log.last_stable_offset):
        data = bytes(batch)
        base, producer_id = struct.unpack_from(">q", data)[0], struct.unpack_from(">q", data, 43)[0]
        bases.append(max(base, log.local_log_start_offset))
        attributes = data[22]
        if attributes & CONTROL:
            first = open_.pop(producer_id, None)
            records = list(read_records(data, include_control=True))
            kind = struct.unpack_from(">h", records[0].key or b"", 2)[0]
            if first is not None and kind == ABORT:
                aborted.append(Aborted(producer_id, first, base))
        elif attributes & TRANSACTIONAL:
            open_.setdefault(producer_id, base)
    return bases, [each for each in aborted if each.first_offset >= log.local_log_start_offset]


def _end_of(data: bytes) -> int:
    """The offset after the whole batches of a slice."""
    at = end = 0
    while at + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if at + size > len(data):
            break
        end = struct.unpack_from(">q", data, at)[0] + struct.unpack_from(">i", data, at + 23)[0] + 1
        at += size
    return end
