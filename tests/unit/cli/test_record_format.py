"""Records as lines: what each format writes of keys, values, headers and places."""

import json

import pytest

from ottla.cli.output import Failure
from ottla.cli.record_format import LineOptions, for_terminal, formatter, readable
from ottla.protocol.records.record import Record

RECORD = Record(7, 1_700_000_000_123, 0, b"key", b"v\xc3\xa4lue", [("a", b"\xff"), ("b", None)])
NULLS = Record(8, -1, 0, None, None, [])
EVERYTHING = LineOptions(key=True, headers=True, where=True, timestamp=True, separator="\\t")
VALUE_ALONE = LineOptions(key=False, headers=False, where=False, timestamp=False, separator=" ")


def test_the_value_alone() -> None:
    text = formatter("text", VALUE_ALONE)
    assert text("t", 3, RECORD) == "välue\n".encode()
    assert text("t", 3, NULLS) == b"null\n"
    assert formatter("hex", VALUE_ALONE)("t", 3, RECORD) == b"76c3a46c7565\n"


def test_everything_in_front_of_the_value() -> None:
    parts = formatter("text", EVERYTHING)("t", 3, RECORD).decode().rstrip("\n").split("\t")
    where, timestamp, headers, key, value = parts
    assert (where, headers, key, value) == ("t-3@7", r"a=\xff,b=null", "key", "välue")
    assert "2023-11-14" in timestamp
    assert formatter("text", EVERYTHING)("t", 3, NULLS) == b"t-3@8\t-\t-\tnull\tnull\n"


def test_raw_bytes_have_no_end_of_line() -> None:
    raw = formatter("raw", EVERYTHING)
    assert raw("t", 3, RECORD) == b"v\xc3\xa4lue"
    assert raw("t", 3, NULLS) == b""


def test_json_keeps_bytes_that_are_no_text() -> None:
    line = formatter("json", VALUE_ALONE)("t", 3, RECORD)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "key": "key",
        "value": "välue",
        "headers": [["a", {"base64": "/w=="}], ["b", None]],
    }
    assert json.loads(formatter("json", VALUE_ALONE)("t", 3, NULLS))["value"] is None


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(Failure, match="xml is not one of text, json, hex, raw"):
        formatter("xml", VALUE_ALONE)


def test_readable() -> None:
    assert readable(None) == "null"
    assert readable(b"a\x00\xfe") == "a\x00\\xfe"


def test_a_record_does_not_control_the_terminal() -> None:
    options = LineOptions(key=True, headers=False, where=False, timestamp=False, separator="\\t")
    record = Record(0, 0, 0, b"k\x1b[2J", "größe\x9b31m\n".encode(), [])
    show = formatter("text", options)
    assert for_terminal(show)("t", 0, record).decode() == "k\\x1b[2J\tgröße\\x9b31m\n\n"
    assert b"\x1b" in show("t", 0, record)  # a pipe gets the bytes


def test_a_separator_that_is_no_text_is_written_as_it_was_typed() -> None:
    options = LineOptions(key=True, headers=False, where=False, timestamp=False, separator="\udcff")
    text = formatter("text", options)
    assert text("t", 3, RECORD) == b"key\xffv\xc3\xa4lue\n"
    assert for_terminal(text)("t", 3, RECORD) == b"key\\xffv\xc3\xa4lue\n"
