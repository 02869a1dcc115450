"""Logins as Java writes them: `...PlainLoginModule required user_alice="secret";`.

The settings `...sasl.jaas.config` hold one login each. Errors never repeat what stands in a value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<quoted> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<word> [^\s"'=;{}]+ )
    | (?P<sign> [=;] )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")


class JaasLogin(NamedTuple):
    """One login module with its options. The options hold secrets: never log them."""

    module: str
    options: dict[str, str]


def parse_jaas(text: str) -> JaasLogin:
    """The one login of a setting. Raises ValueError with words that hold no value of it."""
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[1].upper() not in _FLAGS:
        raise ValueError("it does not begin with the class of a login module and `required`")
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != ";":
        key = tokens[position]
        if tokens[position + 1 : position + 2] != ["="] or len(tokens) <= position + 2:
            raise ValueError(f'option number {len(options) + 1} is not of the form name="value"')
        value = tokens[position + 2]
        if value in ("=", ";"):
            raise ValueError(f'option number {len(options) + 1} is not of the form name="value"')
        options[key] = _plain(value)
        position += 3
    if position >= len(tokens):
        raise ValueError("it does not end with a semicolon")
    if position + 1 < len(tokens):
        raise ValueError("it holds more than one login module")
    return JaasLogin(tokens[0], options)


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quotation mark in it is not closed, or a sign is out of place")
        position = match.end()
        if match.lastgroup is not None:
            found.append(match.group(match.lastgroup))
    return found


def _plain(token: str) -> str:
    """A value without its quotation marks, and escapes resolved as Java does."""
    if token[0] not in "\"'":
        return token

    def resolve(match: re.Match[str]) -> str:
        octal, letter = match.groups()
        return chr(int(octal, 8)) if octal else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(resolve, token[1:-1])
