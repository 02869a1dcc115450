"""Batches and message sets written by Kafka's own classes: we read the same rows from them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.records.compression import CODEC_NAMES
from ottla.protocol.records.control import (
    ABORT,
    COMMIT,
    EndTransactionMarker,
    read_end_transaction_marker,
)
from ottla.protocol.records.convert import down_convert
from ottla.protocol.records.reader import iterate_entries, read_entry, read_records
from ottla.protocol.records.record import Record
from tests.golden.records.regenerate import VECTORS, row_of

Vector = dict[str, Any]


def read_vectors(path: Path) -> list[Vector]:
    with gzip.open(path, "rt", encoding="ascii") as lines:
        vectors: list[Vector] = [json.loads(line) for line in lines]
    large: dict[int, Any] = {}
    for vector in vectors:
        if vector["name"] == "large":  # the rows stand only with the uncompressed one
            vector["rows"] = large.setdefault(vector["magic"], vector["rows"])
    return vectors


ALL = read_vectors(VECTORS)


def name_of(vector: Vector) -> str:
    return f"{vector['name']}-magic {vector['magic']}-{vector['codec']}"


def rows(records: list[Record]) -> list[list[Any]]:
    return [row_of(record) for record in records]


def test_every_magic_and_codec_is_there() -> None:
    found = {(vector["magic"], vector["codec"]) for vector in ALL}
    wanted = {(magic, codec) for magic in (0, 1, 2) for codec in CODEC_NAMES}
    assert found == wanted - {(0, "zstd"), (1, "zstd")}


@pytest.mark.parametrize("vector", ALL, ids=name_of)
def test_rows_are_those_that_kafka_reads(vector: Vector) -> None:
    data = bytes.fromhex(vector["bytes"])
    assert rows(list(read_records(data, include_control=True))) == vector["rows"]
    assert rows(list(read_records(memoryview(data), include_control=True))) == vector["rows"]


@pytest.mark.parametrize("vector", ALL, ids=name_of)
def test_headers_say_what_kafka_says(vector: Vector) -> None:
    data = bytes.fromhex(vector["bytes"])
    entries = list(iterate_entries(data, allow_partial=False))
    assert len(entries) == len(vector["headers"])
    for (position, header), wanted in zip(entries, vector["headers"], strict=True):
        first, *rest = wanted
        assert [
            header.last_offset,
            header.partition_leader_epoch,
            header.max_timestamp,
            header.timestamp_type,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
            header.is_transactional,
            header.is_control,
            header.delete_horizon_ms,
            header.size_in_bytes,
        ] == rest
        records = read_entry(data, position, header)
        if header.magic < 2 or vector["name"] not in ("gaps", "delete horizon"):
            assert records[0].offset == first


@pytest.mark.parametrize(
    ("vector", "to_magic"),
    [(vector, to_magic) for vector in ALL for to_magic in range(len(vector["down"]))],
    ids=lambda value: name_of(value) if isinstance(value, dict) else f"to {value}",
)
def test_down_conversion_gives_the_rows_that_kafka_gives(vector: Vector, to_magic: int) -> None:
    ours = b"".join(down_convert(bytes.fromhex(vector["bytes"]), to_magic))
    wanted = vector["down"][to_magic]
    assert rows(list(read_records(ours))) == wanted["rows"]
    if vector["codec"] == "none":
        assert ours.hex() == wanted["bytes"]


@pytest.mark.parametrize(("name", "kind"), [("commit marker", COMMIT), ("abort marker", ABORT)])
def test_markers_of_transactions(name: str, kind: int) -> None:
    (vector,) = [vector for vector in ALL if vector["name"] == name]
    (record,) = read_records(bytes.fromhex(vector["bytes"]), include_control=True)
    assert read_end_transaction_marker(record) == EndTransactionMarker(kind, 31)
    assert list(read_records(bytes.fromhex(vector["bytes"]))) == []
