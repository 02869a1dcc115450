from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import parse_properties, read_properties


def parsed(text: str) -> dict[str, str]:
    return {item.name: item.value for item in parse_properties(text, "f")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("  a=b", {"a": "b"}),
        ("# a=b\n! c=d\n\n", {}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\", {"a": "b\\"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=\\u0041\\t", {"a": "A\t"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
    ],
)
def test_the_format_is_that_of_java(text: str, expected: dict[str, str]) -> None:
    assert parsed(text) == expected


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbfbroker.id=1\r\n")
    assert [(each.name, each.value) for each in read_properties(str(path))] == [("broker.id", "1")]


def test_each_setting_knows_its_line_also_behind_a_continued_one() -> None:
    items = parse_properties("a=1\\\n2\n\nb=3", "server.properties")
    assert [item.origin for item in items] == ["server.properties:1", "server.properties:4"]


def test_a_bad_escape_names_the_line() -> None:
    with pytest.raises(ConfigError, match="f:2"):
        parse_properties("a=1\nb=\\uZZZZ", "f")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the settings file"):
        read_properties(str(tmp_path / "none"))


def test_bytes_that_are_no_text_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a=1\nb=\xff\n")
    with pytest.raises(ConfigError, match="f:2: the file is not UTF-8"):
        read_properties(str(path))
