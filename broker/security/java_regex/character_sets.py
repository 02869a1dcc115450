"""Sets of characters with the members that Java's `Pattern` gives them."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable

Predicate = Callable[[str], bool]

# A name has few different characters; more of them are computed anew.
_MAX_REMEMBERED = 1024


class CharacterSet(dict[str, bool]):
    """`members[character]`, computed when a character is first asked for."""

    def __init__(self, contains: Predicate) -> None:
        super().__init__()
        self.contains = contains

    def __missing__(self, character: str) -> bool:
        found = self.contains(character)
        if len(self) < _MAX_REMEMBERED:
            self[character] = found
        return found

    def negated(self) -> CharacterSet:
        return CharacterSet(lambda character: not self[character])

    def union(self, other: CharacterSet) -> CharacterSet:
        return CharacterSet(lambda character: self[character] or other[character])

    def intersection(self, other: CharacterSet) -> CharacterSet:
        return CharacterSet(lambda character: self[character] and other[character])


def characters(members: str) -> CharacterSet:
    found = frozenset(members)
    return CharacterSet(found.__contains__)


def single(character: str, *, ignores_case: bool) -> CharacterSet:
    """One character. Without UNICODE_CASE only letters of ASCII have another case."""
    if ignores_case and character.isascii():
        return characters(character.lower() + character.upper())
    return characters(character)


def character_range(first: str, last: str, *, ignores_case: bool) -> CharacterSet:
    def contains(character: str) -> bool:
        if first <= character <= last:
            return True
        if not (ignores_case and character.isascii()):
            return False
        return first <= character.lower() <= last or first <= character.upper() <= last

    return CharacterSet(contains)


LINE_TERMINATORS = "\n\r\x85\u2028\u2029"
_DIGITS = characters(string.digits)
_WORD = characters(string.ascii_letters + string.digits + "_")
_SPACE = characters(" \t\n\x0b\f\r")
_HORIZONTAL = characters(
    " \t\xa0\u1680\u180e\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
VERTICAL = characters("\n\x0b\f\r\x85\u2028\u2029")

ANY = CharacterSet(lambda _: True)
DOT = characters(LINE_TERMINATORS).negated()
UNIX_DOT = characters("\n").negated()

#: By the letter behind the backslash.
ESCAPED = {
    "d": _DIGITS,
    "D": _DIGITS.negated(),
    "w": _WORD,
    "W": _WORD.negated(),
    "s": _SPACE,
    "S": _SPACE.negated(),
    "h": _HORIZONTAL,
    "H": _HORIZONTAL.negated(),
    "v": VERTICAL,
    "V": VERTICAL.negated(),
}

_CATEGORIES = (
    *("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp"),
    *(
        "Cc",
        "Cf",
        "Co",
        "Cs",
        "Cn",
        "Pd",
        "Ps",
        "Pe",
        "Pc",
        "Po",
        "Pi",
        "Pf",
        "Sm",
        "Sc",
        "Sk",
        "So",
    ),
)


def _of_categories(*names: str) -> CharacterSet:
    found = frozenset(names)
    return CharacterSet(lambda character: unicodedata.category(character) in found)


_CASED = ("Lu", "Ll", "Lt")
_LETTERS = (*_CASED, "Lm", "Lo")

_UNICODE = {
    **{name: _of_categories(name) for name in _CATEGORIES},
    **{
        letter: _of_categories(*(each for each in _CATEGORIES if each[0] == letter))
        for letter in "LMNZPSC"
    },
    "LC": _of_categories(*_CASED),
    "LD": _of_categories(*_LETTERS, "Nd"),
    "L1": CharacterSet(lambda character: character <= "\xff"),
    "all": ANY,
}
_ASCII = {
    "ASCII": CharacterSet(str.isascii),
    "Alnum": characters(string.ascii_letters + string.digits),
    "Alpha": characters(string.ascii_letters),
    "Blank": characters(" \t"),
    "Cntrl": characters("".join(map(chr, (*range(0x20), 0x7F)))),
    "Digit": _DIGITS,
    "Graph": characters("".join(map(chr, range(0x21, 0x7F)))),
    "Lower": characters(string.ascii_lowercase),
    "Print": characters("".join(map(chr, range(0x20, 0x7F)))),
    "Punct": characters(string.punctuation),
    "Space": _SPACE,
    "Upper": characters(string.ascii_uppercase),
    "XDigit": characters(string.hexdigits),
}
#: Java versions differ in whether these are of both cases under (?i).
CASED_PROPERTIES = frozenset(("Lu", "Ll", "Lt", "Lower", "Upper"))


_PROPERTIES = {**_ASCII, **_UNICODE}


def named_property(name: str) -> CharacterSet | None:
    """The set of `\\p{name}`; None for those that Python has no data of."""
    kind, separator, value = name.partition("=")
    if separator:
        return _PROPERTIES.get(value) if kind.lower() in ("gc", "general_category") else None
    if name.startswith("Is"):
        return _UNICODE.get(name[2:])
    return _PROPERTIES.get(name)


def is_word(character: str) -> bool:
    """Whether `\\b` takes a character for one of a word, as Java does up to version 18."""
    return character == "_" or unicodedata.category(character) in (*_LETTERS, "Nd")
