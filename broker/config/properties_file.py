"""Reading `server.properties`: Java's properties format, with the line of every setting."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.config.errors import ConfigError

# A server.properties of many thousand lines is not one; do not read a disk image into memory.
_MAX_FILE_BYTES = 4 * 1024 * 1024

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One setting as written; `origin` is "file:line" for messages."""

    name: str
    value: str
    origin: str


def read_properties(path: str) -> list[Property]:
    """The settings of a file in the order written; ConfigError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"Cannot read the settings file {path}: {error.strerror}.") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_FILE_BYTES} bytes: no settings file.")
    try:
        text = data.decode("utf-8-sig")  # editors of Windows write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8 text.") from None
    return parse_properties(text, path)


def parse_properties(text: str, source: str) -> list[Property]:
    """Comments (# and !), continuation lines, =, : or a blank between name and value, escapes."""
    result: list[Property] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        origin = f"{source}:{index + 1}"
        line = lines[index].lstrip(" \t\f")
        index += 1
        if not line or line[0] in "#!":
            continue
        while _continues(line) and index < len(lines):
            line = line[:-1] + lines[index].lstrip(" \t\f")
            index += 1
        if _continues(line):
            line = line[:-1]
        name, value = _split(line)
        result.append(Property(_unescape(name, origin), _unescape(value, origin), origin))
    return result


def _continues(line: str) -> bool:
    """A line continues when it ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line):
        if line[end] == "\\":
            end += 2
            continue
        if line[end] in "=: \t\f":
            break
        end += 1
    rest = line[end:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:end], rest


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\" or index >= len(text):
            out.append(character)
            continue
        character = text[index]
        index += 1
        if character == "u":
            digits = text[index : index + 4]
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise ConfigError(f"{origin}: \\u needs four hexadecimal digits.") from None
            index += 4
        else:
            out.append(_ESCAPES.get(character, character))
    return "".join(out)
