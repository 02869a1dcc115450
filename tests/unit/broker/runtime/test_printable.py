"""No character that ends a line or controls a terminal is left."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from ottla.broker.runtime.printable import printable, printable_json, printable_lines

EVERY_CHARACTER = "".join(map(chr, range(sys.maxunicode + 1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("größe 日本 \\ 'x'", "größe 日本 \\ 'x'"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x00\x7f\x9b", "\\x1b[2J\\x00\\x7f\\x9b"),
        ("\u202egpj.exe \u2028 \ud800", "\\u202egpj.exe \\u2028 \\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_lines_stay_lines() -> None:
    assert printable_lines("a\n\tb\r\x1b") == "a\n\tb\\r\\x1b"


def test_no_control_character_is_left() -> None:
    left = {unicodedata.category(each) for each in printable(EVERY_CHARACTER)}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert printable(EVERY_CHARACTER).splitlines() == [printable(EVERY_CHARACTER)]


def test_json_means_the_same() -> None:
    value = {"a\x9b": ["\x1b", "\u2028", "\u202e", "plain", "\x7f"]}
    document = json.dumps(value, indent=2, ensure_ascii=False)
    shown = printable_json(document)
    assert json.loads(shown) == value
    assert printable_lines(shown) == shown
