"""Parses regular expressions in RE2 syntax (https://github.com/google/re2/wiki/Syntax).

What RE2 rejects is rejected: backreferences, look-around, possessive repetition. Unicode classes
(`\\pN`, `\\p{Greek}`) and `\\C` are rejected, too, though RE2 has them; topic names are ASCII.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]
"""Code points, as inclusive ranges in any order."""

MAX_REPEAT = 1_000  # as in RE2, also for counted repetitions in counted repetitions
MAX_LENGTH = 10_000  # of the text: parsing it takes some 20 ms
MAX_DEPTH = 200  # of groups: the parser and the compiler call themselves for each
LAST_CODE_POINT = 0x10FFFF


class BadPattern(ValueError):
    """The text is not a valid regular expression; the message has the reason."""


class Characters(NamedTuple):
    """One character of `ranges`."""

    ranges: Ranges


class Assertion(NamedTuple):
    """Matches between two characters: `^` and `$` with their meaning, or a word boundary."""

    kind: str  # begin_text, end_text, begin_line, end_line, boundary, no_boundary


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    part: Node
    least: int
    most: int | None  # None: without limit


Node = Characters | Assertion | Sequence | Choice | Repeat

_DIGITS: Ranges = ((48, 57),)
_SPACES: Ranges = ((9, 10), (12, 13), (32, 32))
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_PERL_CLASSES = {"d": _DIGITS, "s": _SPACES, "w": WORD}
_POSIX_CLASSES: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGITS,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ASSERTIONS = {"A": "begin_text", "z": "end_text", "b": "boundary", "B": "no_boundary"}
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII)
_GROUP_NAME = re.compile(r"\(\?P?<(\w+)>")
_FLAGS = re.compile(r"\(\?([imsU]*)(-([imsU]+))?([:)])")
_CODE_POINT = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")


def negated(ranges: Ranges) -> Ranges:
    result, start = [], 0
    for first, last in sorted(ranges):
        if first > start:
            result.append((start, first - 1))
        start = max(start, last + 1)
    if start <= LAST_CODE_POINT:
        result.append((start, LAST_CODE_POINT))
    return tuple(result)


def _folded(ranges: Ranges) -> Ranges:
    """With the ASCII letters of the other case."""
    result = list(ranges)
    for first, last in ranges:
        for low, high, shift in ((65, 90, 32), (97, 122, -32)):
            if max(first, low) <= min(last, high):
                result.append((max(first, low) + shift, min(last, high) + shift))
    return tuple(result)


class Parser:
    """For one text. `i`, `m` and `s` are flags; `U` changes only what groups capture."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._flags: frozenset[str] = frozenset()
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        """Parse the whole text. Raises BadPattern."""
        if len(self._text) > MAX_LENGTH:
            raise BadPattern("pattern too large - compile failed")
        node = self._choice()
        if self._position < len(self._text):
            raise BadPattern("unexpected ): " + self._text)
        return node

    def _next_is(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._next_is("|"):
            self._position += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            if self._next_is("\\Q"):
                parts += self._quoted()
            elif self._is_repetition():
                self._repeat(parts)
            elif self._next_is("("):
                part = self._group()
                if part is not None:
                    parts.append(part)
            else:
                parts.append(self._one())
        return Sequence(tuple(parts))

    def _rest(self, length: int) -> str:
        return self._text[self._position : self._position + length]

    def _quoted(self) -> list[Node]:
        end = self._text.find("\\E", self._position)
        stop = len(self._text) if end < 0 else end
        quoted = self._text[self._position + 2 : stop]
        self._position = stop if end < 0 else end + 2
        return [self._literal(ord(each)) for each in quoted]

    def _literal(self, code_point: int) -> Characters:
        return self._characters(((code_point, code_point),))

    def _characters(self, ranges: Ranges) -> Characters:
        return Characters(_folded(ranges) if "i" in self._flags else ranges)

    # Repetitions.

    def _is_repetition(self) -> bool:
        return self._text[self._position : self._position + 1] in ("*", "+", "?") or (
            _COUNT.match(self._text, self._position) is not None
        )

    def _repeat(self, parts: list[Node]) -> None:
        start = self._position
        counted = _COUNT.match(self._text, start)
        if counted is None:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._text[start]]
            self._position += 1
        else:
            self._position = counted.end()
            least = _repeat_count(counted[1])
            if counted[2] is None:
                most = least
            else:
                most = _repeat_count(counted[3]) if counted[3] else None
        if self._next_is("?"):
            self._position += 1  # as few as possible: the same when all has to match
        operator = self._text[start : self._position]
        if not parts:
            raise BadPattern("missing argument to repetition operator: " + operator)
        if self._position < len(self._text) and self._is_repetition():
            raise BadPattern("bad repetition operator: " + operator + self._rest(1))
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise BadPattern("bad repetition operator: " + operator)
        parts[-1] = Repeat(parts[-1], least, most)
        if _nested_count(parts[-1]) > MAX_REPEAT:
            raise BadPattern("bad repetition operator: " + operator)

    # Groups.

    def _group(self) -> Node | None:
        """Return a group, or None after flags that hold for the rest of the group around."""
        flags_before = self._flags
        if self._next_is("(?"):
            named = _GROUP_NAME.match(self._text, self._position)
            flags = _FLAGS.match(self._text, self._position)
            if named is not None:
                if named[1] in self._names:
                    raise BadPattern("duplicate capture group name: " + named[1])
                self._names.add(named[1])
                self._position = named.end()
            elif flags is not None:
                self._flags = (self._flags | set(flags[1])) - set(flags[3] or "")
                self._position = flags.end()
                if flags[4] == ")":
                    return None
            else:
                raise BadPattern("invalid perl operator: " + self._rest(3))
        else:
            self._position += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadPattern("groups are nested too deeply")
        node = self._choice()
        self._depth -= 1
        if not self._next_is(")"):
            raise BadPattern("missing ): " + self._text)
        self._position += 1
        self._flags = flags_before
        return node

    # Single characters, classes and assertions.

    def _one(self) -> Node:
        each = self._text[self._position]
        if each == "[":
            return self._bracket()
        if each == "\\":
            return self._escape()
        self._position += 1
        if each == ".":
            newline = () if "s" in self._flags else ((10, 10),)
            return Characters(negated(newline))
        if each == "^":
            return Assertion("begin_line" if "m" in self._flags else "begin_text")
        if each == "$":
            return Assertion("end_line" if "m" in self._flags else "end_text")
        return self._literal(ord(each))

    def _escape(self) -> Node:
        kind = self._text[self._position + 1 : self._position + 2]
        if kind in _ASSERTIONS and kind:
            self._position += 2
            return Assertion(_ASSERTIONS[kind])
        ranges = self._perl_class()
        if ranges is not None:
            return self._characters(ranges)
        return self._literal(self._escaped_code_point())

    def _perl_class(self) -> Ranges | None:
        if not self._next_is("\\"):
            return None
        kind = self._text[self._position + 1 : self._position + 2]
        if kind in ("p", "P", "C"):
            raise BadPattern("not supported here: " + self._rest(2))
        found = _PERL_CLASSES.get(kind.lower())
        if found is None:
            return None
        self._position += 2
        return found if kind.islower() else negated(found)

    def _escaped_code_point(self) -> int:
        """After a backslash that begins no class and no assertion."""
        text, at = self._text, self._position + 1
        if at == len(text):
            raise BadPattern("trailing \\")
        if (hexadecimal := _CODE_POINT.match(text, at)) is not None:
            self._position = hexadecimal.end()
            value = int(hexadecimal[1] or hexadecimal[2], 16)
        elif (octal := _OCTAL.match(text, at)) is not None:
            self._position = octal.end()
            value = int(octal[0], 8)
        elif text[at] in _CONTROLS:
            self._position = at + 1
            value = _CONTROLS[text[at]]
        elif text[at].isascii() and not text[at].isalnum():
            self._position = at + 1
            value = ord(text[at])
        else:
            raise BadPattern("invalid escape sequence: " + self._rest(2))
        if value > LAST_CODE_POINT:
            raise BadPattern("invalid escape sequence: " + self._rest(2))
        return value

    def _bracket(self) -> Node:
        start = self._position
        self._position += 1
        is_negated = self._next_is("^")
        self._position += is_negated
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self._next_is("]"):
            if self._position >= len(self._text):
                raise BadPattern("missing ]: " + self._text[start:])
            is_first = False
            ranges += self._bracket_item()
        self._position += 1
        found = self._characters(tuple(ranges)).ranges
        return Characters(negated(found) if is_negated else found)

    def _bracket_item(self) -> Ranges:
        """Return a range, a character or a class within brackets."""
        if self._next_is("[:") and (end := self._text.find(":]", self._position + 2)) >= 0:
            name = self._text[self._position + 2 : end]
            found = _POSIX_CLASSES.get(name.removeprefix("^"))
            if found is None:
                raise BadPattern(f"invalid character class range: [:{name}:]")
            self._position = end + 2
            return negated(found) if name.startswith("^") else found
        found = self._perl_class()
        if found is not None:
            return found
        start = self._position
        first = last = self._bracket_character()
        if self._next_is("-") and not self._next_is("-]"):
            self._position += 1
            last = self._bracket_character()
        if last < first:
            text = self._text[start : self._position]
            raise BadPattern("invalid character class range: " + text)
        return ((first, last),)

    def _bracket_character(self) -> int:
        if self._position >= len(self._text):
            raise BadPattern("missing ]: " + self._text)
        if self._next_is("\\"):
            return self._escaped_code_point()
        self._position += 1
        return ord(self._text[self._position - 1])


def _repeat_count(digits: str) -> int:
    """More digits than the limit has are above it, whatever they are; none is parsed then."""
    return int(digits) if len(digits.lstrip("0")) <= len(str(MAX_REPEAT)) else MAX_REPEAT + 1


def _nested_count(node: Node) -> int:
    """How often the innermost part of counted repetitions is repeated."""
    if isinstance(node, Repeat):
        return max(1, node.least, node.most or 0) * _nested_count(node.part)
    if isinstance(node, Sequence | Choice):
        return max((_nested_count(part) for part in node.parts), default=1)
    return 1
