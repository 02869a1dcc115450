"""Data that only begins like a registry's framing keeps all its bytes, and what is cut says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.broker.observability.console.record_views import (
    MAX_HEADERS,
    MAX_SHOWN_BYTES,
    record_row,
    shown,
)
from ottla.protocol.records.record import Record

NUMBERS = [0, 42, (1 << 24) - 1, 1 << 24, (7 << 24) + 5, 1 << 32, 1 << 55]


def seen(data: bytes, view: str = "auto", **given: Any) -> dict[str, Any]:
    row = shown(data, view, **given)
    assert row is not None
    return row


@pytest.mark.parametrize("number", [*NUMBERS, int.from_bytes(b"\0\0\0\0\x07[1]")])
@pytest.mark.parametrize("view", ["auto", "avro", "json"])
def test_a_big_endian_long_is_shown_with_all_bytes(number: int, view: str) -> None:
    row = seen(number.to_bytes(8), view)
    assert row["text"] == number.to_bytes(8).hex(" ")
    assert row["kind"].startswith("bytes")


@pytest.mark.parametrize("view", ["auto", "avro", "json"])
def test_text_behind_what_may_be_an_id_loses_nothing(view: str) -> None:
    row = seen(b"\0\0\0\0\x07text", view)
    assert row["text"] == "00 00 00 00 07 74 65 78 74"
    assert "schema" not in row["kind"]


def test_only_an_id_from_1_is_looked_up_in_the_registry() -> None:
    for schema_id, is_asked in ((0, False), (1, True)):
        data = b"\0" + schema_id.to_bytes(4) + b"\x02\x04"
        row = seen(data, frames=True)
        assert ("raw" in row) == is_asked
        assert row["text"] == data.hex(" ")


def test_json_behind_an_id_is_read() -> None:
    row = seen(b"\0\0\0\0\x07" + b'{"a": 1}')
    assert row == {"kind": "schema 7, JSON", "text": '{"a": 1}', "bytes": 13}


@pytest.mark.parametrize("view", ["auto", "bytes", "avro", "json"])
def test_long_bytes_end_with_their_length(view: str) -> None:
    assert seen(b"\xff" * 5_000_000, view)["text"].endswith("ff … (5,000,000 bytes)")
    assert "…" not in seen(b"\xff" * 1024, view)["text"]


@pytest.mark.parametrize("view", ["auto", "text", "json"])
@pytest.mark.parametrize("letter", ["x", "é", "€"])
def test_long_text_ends_with_its_length(letter: str, view: str) -> None:
    size = len(letter.encode())
    row = seen(letter.encode() * 9000, view)
    assert row["text"].startswith(letter * (MAX_SHOWN_BYTES // size))
    assert row["text"].endswith(f" … ({9000 * size:,} bytes)")
    whole = letter * (MAX_SHOWN_BYTES // size)
    assert seen(whole.encode(), view)["text"] == whole


def test_long_json_ends_with_its_length() -> None:
    data = json.dumps([{"n": number} for number in range(1000)]).encode()
    assert seen(data, "json")["text"].endswith(f" … ({len(data):,} bytes)")


def test_headers_that_are_cut_say_so() -> None:
    headers = [("h", b"x" * 300)] * (MAX_HEADERS + 3)
    row = record_row(Record(0, 0, 0, None, None, headers), 0)
    assert row["headers"][0][1]["text"] == "x" * 200 + " … (300 bytes)"
    assert (len(row["headers"]), row["more_headers"]) == (MAX_HEADERS, 3)
