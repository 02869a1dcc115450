"""Logins as Java writes them: `...PlainLoginModule required user_alice="secret";`.

The settings `...sasl.jaas.config` hold one login each, a JAAS file has sections with some. Errors
never repeat what stands in a value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<quoted> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<word> [^\s"'=;{}]+ )
    | (?P<sign> [=;{}] )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_SIGNS = ("=", ";", "{", "}")


class JaasLogin(NamedTuple):
    """One login module with its options. The options hold secrets: never log them."""

    module: str
    options: dict[str, str]


def parse_jaas(text: str) -> JaasLogin:
    """The one login of a setting. Raises ValueError with words that hold no value of it."""
    tokens = _Tokens(text)
    login = _login(tokens)
    if tokens.next is not None:
        raise ValueError("it holds more than one login module")
    return login


def parse_jaas_file(text: str) -> dict[str, tuple[JaasLogin, ...]]:
    """The logins by section, `KafkaServer { ...PlainLoginModule required ...; };`.

    What Java's `ConfigFile` accepts is accepted. Raises ValueError, with the line and no value.
    """
    tokens = _Tokens(text)
    sections: dict[str, tuple[JaasLogin, ...]] = {}
    try:
        while tokens.next is not None:
            name, logins = _section(tokens)
            if name in sections:
                raise ValueError(f"there is more than one section {name}")
            sections[name] = logins
    except ValueError as error:
        raise ValueError(f"line {tokens.line}: {error}") from None
    return sections


def _section(tokens: _Tokens) -> tuple[str, tuple[JaasLogin, ...]]:
    name = _plain(tokens.take())
    if tokens.take() != "{" or name in _SIGNS:
        raise ValueError("a section begins with its name and `{`")
    logins: list[JaasLogin] = []
    while tokens.next != "}":
        logins.append(_login(tokens))
    tokens.take()
    if tokens.take() != ";":
        raise ValueError("a section ends with `};`")
    return name, tuple(logins)


def _login(tokens: _Tokens) -> JaasLogin:
    module, flag = tokens.take(), tokens.take()
    if module in _SIGNS or flag.upper() not in _FLAGS:
        raise ValueError("it does not begin with the class of a login module and `required`")
    options: dict[str, str] = {}
    while tokens.next != ";":
        if tokens.next is None:
            raise ValueError("it does not end with a semicolon")
        key, equals, value = tokens.take(), tokens.take(), tokens.take()
        if equals != "=" or key in _SIGNS or value in ("", *_SIGNS):
            raise ValueError(f'option number {len(options) + 1} is not of the form name="value"')
        options[_plain(key)] = _plain(value)
    tokens.take()
    return JaasLogin(_plain(module), options)


class _Tokens:
    """The words, quoted texts and signs of a text, one at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        #: What `take` gives next; None at the end.
        self.next: str | None = None
        self._start = self._taken = 0
        self._read()

    @property
    def line(self) -> int:
        """The line of what was taken last, from 1."""
        return self._text.count("\n", 0, self._taken) + 1

    def take(self) -> str:
        """The next one; "" at the end."""
        taken, self._taken = self.next or "", self._start
        self._read()
        return taken

    def _read(self) -> None:
        while self._position < len(self._text):
            match = _TOKEN.match(self._text, self._position)
            if match is None:
                raise ValueError("a quotation mark in it is not closed, or a sign is out of place")
            self._start, self._position = match.span()
            if match.lastgroup is not None:
                self.next = match.group(match.lastgroup)
                return
        self.next = None


def _plain(token: str) -> str:
    """A value without its quotation marks, and escapes resolved as Java does."""
    if not token or token[0] not in "\"'":
        return token

    def resolve(match: re.Match[str]) -> str:
        octal, letter = match.groups()
        return chr(int(octal, 8)) if octal else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(resolve, token[1:-1])
