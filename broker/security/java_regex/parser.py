"""Reads regular expressions in the syntax of `java.util.regex.Pattern` (Java 17).

What has another meaning in other versions of Java, or needs data that Python does not have, is an
error with its position, and so is what Java rejects. Not read: the flags u, U, c and x, \\G, \\X,
\\N, \\b{g}, blocks and scripts of Unicode and the properties of `java.lang.Character`.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.security.java_regex import character_sets
from ottla.broker.security.java_regex.character_sets import CharacterSet
from ottla.broker.security.java_regex.tree import (
    Anchor,
    Characters,
    Choice,
    Greed,
    Group,
    Independent,
    Look,
    Node,
    PatternError,
    Place,
    Reference,
    Repeat,
    Sequence,
    Tree,
    has_groups,
    lengths,
)

# Rules are written by people. Nested deeper than this, Python's own stack would end.
_MAX_DEPTH = 50
_MAX_COUNT = 1000

_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\x07", "e": "\x1b"}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")
_FLAGS = "imsd"


class _Unit(NamedTuple):
    """A character of the pattern. One between \\Q and \\E has no other meaning."""

    text: str
    position: int
    is_quoted: bool


_END = _Unit("", -1, True)


def parse(pattern: str) -> Tree:
    """The tree of a pattern. Raises PatternError."""
    return _Parser(pattern).parse()


def _units(pattern: str) -> list[_Unit]:
    units: list[_Unit] = []
    index, is_quoted = 0, False
    while index < len(pattern):
        character = pattern[index]
        pair = pattern[index : index + 2]
        if is_quoted:
            if pair == "\\E":
                index, is_quoted = index + 2, False
                continue
            units.append(_Unit(character, index, True))
        elif pair == "\\Q":
            index, is_quoted = index + 2, True
            continue
        else:
            units.append(_Unit(character, index, False))
            if character == "\\" and len(pair) == 2:
                index += 1
                units.append(_Unit(pair[1], index, False))
        index += 1
    return units


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._units = _units(pattern)
        self._index = 0
        self._flags = ""
        self._groups = 0
        self._names: dict[str, int] = {}
        self._depth = 0

    def parse(self) -> Tree:
        root = self._choice()
        if self._index < len(self._units):
            raise self._error("unmatched closing ')'")
        return Tree(root, self._groups, self._names)

    # Access to the characters

    def _error(self, reason: str, back: int = 0) -> PatternError:
        index = self._index - back
        position = (
            self._units[index].position if 0 <= index < len(self._units) else len(self._pattern)
        )
        return PatternError(reason, position)

    def _peek(self, ahead: int = 0) -> _Unit:
        index = self._index + ahead
        return self._units[index] if index < len(self._units) else _END

    def _meta(self, ahead: int = 0) -> str:
        """The next character if it can have a meaning, else the empty string."""
        unit = self._peek(ahead)
        return "" if unit.is_quoted else unit.text

    def _take(self) -> str:
        unit = self._peek()
        self._index += 1
        return unit.text

    def _accept(self, text: str) -> bool:
        if all(self._meta(ahead) == each for ahead, each in enumerate(text)):
            self._index += len(text)
            return True
        return False

    # Structure

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._index < len(self._units) and self._meta() not in ("|", ")"):
            part = self._part()
            if part is not None:
                parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Node | None:
        """None for `(?flags)`."""
        character = self._meta()
        match character:
            case "(":
                return self._group()
            case "[":
                self._index += 1
                return Characters(self._class())
            case "\\":
                self._index += 1
                return self._escape()
            case "^":
                self._index += 1
                return Anchor(self._line_start())
            case "$":
                self._index += 1
                return Anchor(self._line_end())
            case ".":
                self._index += 1
                return Characters(self._dot())
            case "?" | "*" | "+":
                raise self._error(f"dangling meta character '{character}'")
            case "{":
                raise self._error("illegal repetition")
            case _:
                return self._literal(self._take())

    def _literal(self, character: str) -> Characters:
        ignores_case = "i" in self._flags
        members = character_sets.single(character, ignores_case=ignores_case)
        has_case = ignores_case and character.isascii() and character.isalpha()
        return Characters(members, None if has_case else character)

    def _line_start(self) -> Place:
        if "m" not in self._flags:
            return Place.START
        return Place.UNIX_LINE_START if "d" in self._flags else Place.LINE_START

    def _line_end(self) -> Place:
        if "d" in self._flags:
            return Place.UNIX_LINE_END if "m" in self._flags else Place.UNIX_LAST_LINE_END
        return Place.LINE_END if "m" in self._flags else Place.LAST_LINE_END

    def _dot(self) -> CharacterSet:
        if "s" in self._flags:
            return character_sets.ANY
        return character_sets.UNIX_DOT if "d" in self._flags else character_sets.DOT

    # Repetition

    def _repeated(self, body: Node) -> Node:
        start = self._index
        character = self._meta()
        if character in ("?", "*", "+"):
            self._index += 1
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[character]
        elif character == "{":
            self._index += 1
            least, most = self._counts()
        else:
            return body
        greed = Greed.GREEDY
        if self._accept("?"):
            greed = Greed.LAZY
        elif self._accept("+"):
            greed = Greed.POSSESSIVE
        if greed is Greed.POSSESSIVE and least > 1 and has_groups(body):
            self._index = start
            raise self._error("a possessive repetition of a group that captures is not supported")
        if isinstance(body, Choice):
            # Of \R, which Java repeats without a second way to match.
            body = Independent(body)
        return Repeat(body, least, most, greed)

    def _counts(self) -> tuple[int, int | None]:
        least = self._number()
        if least is None:
            raise self._error("illegal repetition")
        most: int | None = least
        if self._accept(","):
            if self._meta() == "}":
                most = None
            else:
                most = self._number() or 0
        if not self._accept("}"):
            raise self._error("unclosed counted closure")
        if most is not None and most < least:
            raise self._error("illegal repetition range", 1)
        if max(least, most or 0) > _MAX_COUNT:
            raise self._error(f"a repetition of more than {_MAX_COUNT} is not supported", 1)
        return least, most

    def _number(self) -> int | None:
        digits = ""
        while self._meta() and self._meta() in "0123456789":
            digits += self._take()
        if len(digits) > 9:
            raise self._error("illegal repetition range", 1)
        return int(digits) if digits else None

    # Groups

    def _group(self) -> Node | None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"groups nested deeper than {_MAX_DEPTH} are not supported")
        flags = self._flags
        start = self._index
        self._index += 1
        made = self._special_group() if self._accept("?") else self._capturing(None)
        self._depth -= 1
        if made is None:
            return None
        if not self._accept(")"):
            self._index = start
            raise self._error("unclosed group")
        self._flags = flags
        return made

    def _capturing(self, name: str | None) -> Node:
        self._groups += 1
        number = self._groups
        if name is not None:
            self._names[name] = number
        return Group(self._choice(), number)

    def _special_group(self) -> Node | None:
        if self._accept(":"):
            return Group(self._choice(), None)
        if self._accept("="):
            return Look(self._choice(), False, None)
        if self._accept("!"):
            return Look(self._choice(), True, None)
        if self._accept(">"):
            return Independent(self._choice())
        if self._accept("<="):
            return self._behind(is_negative=False)
        if self._accept("<!"):
            return self._behind(is_negative=True)
        if self._accept("<"):
            name = self._group_name()
            if name in self._names:
                raise self._error(f"the group <{name}> is defined twice", 1)
            return self._capturing(name)
        return self._flag_group()

    def _behind(self, *, is_negative: bool) -> Node:
        start = self._index
        body = self._choice()
        least, most = lengths(body)
        if most is None:
            self._index = start
            raise self._error("a look-behind group without a maximum length is not supported")
        return Look(body, is_negative, (least, most))

    def _group_name(self) -> str:
        name = ""
        while (character := self._meta()).isascii() and character.isalnum():
            name += self._take()
        if not name or not name[0].isalpha():
            raise self._error("the name of a group does not begin with a Latin letter")
        if not self._accept(">"):
            raise self._error("the name of a group lacks its '>'")
        return name

    def _flag_group(self) -> Node | None:
        flags, is_removed = set(self._flags), False
        while True:
            character = self._meta()
            if character and character in _FLAGS:
                (flags.discard if is_removed else flags.add)(character)
            elif character == "-" and not is_removed:
                is_removed = True
            elif character and character in "uUcx":
                raise self._error(f"the flag {character} is not supported")
            else:
                break
            self._index += 1
        text = "".join(sorted(flags))
        if self._accept(")"):
            self._flags = text
            return None
        if not self._accept(":"):
            raise self._error("unknown inline modifier")
        self._flags = text
        return Group(self._choice(), None)

    # Escapes

    def _escape(self) -> Node:
        """What stands behind a backslash, outside a class."""
        character = self._meta()
        places = {
            "A": Place.START,
            "z": Place.END,
            "b": Place.WORD_BOUNDARY,
            "B": Place.NO_WORD_BOUNDARY,
            "Z": Place.UNIX_LAST_LINE_END if "d" in self._flags else Place.LAST_LINE_END,
        }
        if character in places and character:
            self._index += 1
            if character == "b" and self._meta() == "{":
                raise self._error("\\b{ is not supported", 1)
            return Anchor(places[character])
        if character == "R":
            self._index += 1
            crlf = Sequence((self._plain("\r"), self._plain("\n")))
            return Choice((crlf, Characters(character_sets.VERTICAL)))
        if character == "k":
            return self._named_reference()
        if character and character in "123456789":
            return self._reference()
        members = self._escaped_set()
        if members is not None:
            return Characters(members)
        return self._literal(self._escaped_character())

    def _plain(self, character: str) -> Characters:
        return Characters(character_sets.characters(character), character)

    def _named_reference(self) -> Node:
        self._index += 1
        if not self._accept("<"):
            raise self._error("\\k is not followed by '<'")
        name = self._group_name()
        if name not in self._names:
            raise self._error(f"the group <{name}> does not exist", 1)
        return Reference(self._names[name], "i" in self._flags)

    def _reference(self) -> Node:
        """Takes another digit as long as there is such a group."""
        number = int(self._take())
        while (digit := self._meta()) and digit in "0123456789":
            longer = number * 10 + int(digit)
            if longer > self._groups:
                break
            number = longer
            self._index += 1
        return Reference(number, "i" in self._flags)

    def _escaped_set(self) -> CharacterSet | None:
        """A predefined class such as \\d or \\p{L}, in a class or outside; None for others."""
        character = self._meta()
        if character in character_sets.ESCAPED:
            self._index += 1
            return character_sets.ESCAPED[character]
        if character not in ("p", "P"):
            return None
        self._index += 1
        return self._property(is_negative=character == "P")

    def _property(self, *, is_negative: bool) -> CharacterSet:
        start = self._index
        if self._accept("{"):
            name = ""
            while self._meta() != "}":
                if self._index >= len(self._units):
                    raise self._error("unclosed character family")
                name += self._take()
            self._index += 1
        else:
            name = self._take()
        found = character_sets.named_property(name)
        if found is None or (
            "i" in self._flags
            and name.removeprefix("Is").rpartition("=")[2] in character_sets.CASED_PROPERTIES
        ):
            self._index = start
            raise self._error(f"the character property {name} is not supported")
        return found.negated() if is_negative else found

    def _escaped_character(self) -> str:
        """The character that an escape sequence stands for."""
        if self._index >= len(self._units):
            raise self._error("unexpected end behind a backslash", 1)
        character = self._take()
        if character in _CONTROLS:
            return _CONTROLS[character]
        match character:
            case "0":
                return self._octal()
            case "x":
                return self._hexadecimal()
            case "u":
                return self._utf16()
            case "c":
                if self._index >= len(self._units):
                    raise self._error("illegal control escape sequence", 1)
                return chr(ord(self._take()) ^ 64)
        if character.isascii() and character.isalnum():
            raise self._error(f"the escape sequence \\{character} is not supported", 1)
        return character

    def _digits(self, allowed: frozenset[str], most: int) -> str:
        digits = ""
        while len(digits) < most and self._meta() in allowed:
            digits += self._take()
        return digits

    def _octal(self) -> str:
        first = self._digits(_OCTAL, 2)
        if not first:
            raise self._error("illegal octal escape sequence")
        if len(first) == 2 and first[0] <= "3":
            first += self._digits(_OCTAL, 1)
        return chr(int(first, 8))

    def _hexadecimal(self) -> str:
        if self._accept("{"):
            digits = self._digits(_HEX, 8)
            if not digits or not self._accept("}") or int(digits, 16) > 0x10FFFF:
                raise self._error("illegal hexadecimal escape sequence")
            return chr(int(digits, 16))
        digits = self._digits(_HEX, 2)
        if len(digits) != 2:
            raise self._error("illegal hexadecimal escape sequence")
        return chr(int(digits, 16))

    def _utf16(self) -> str:
        first = self._utf16_unit()
        if 0xD800 <= first < 0xDC00 and self._meta() == "\\" and self._meta(1) == "u":
            index = self._index
            self._index += 2
            second = self._utf16_unit()
            if 0xDC00 <= second < 0xE000:
                return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))
            self._index = index
        return chr(first)

    def _utf16_unit(self) -> int:
        digits = self._digits(_HEX, 4)
        if len(digits) != 4:
            raise self._error("illegal Unicode escape sequence")
        return int(digits, 16)

    # Classes

    def _class(self) -> CharacterSet:
        """What stands behind a '[', up to its ']'."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"classes nested deeper than {_MAX_DEPTH} are not supported")
        is_negative = self._accept("^")
        found = self._union()
        if not self._accept("]"):
            raise self._error("unclosed character class")
        self._depth -= 1
        return found.negated() if is_negative else found

    def _union(self) -> CharacterSet:
        """The members up to a ']', which is one itself if it comes first."""
        found: CharacterSet | None = None
        while True:
            if self._index >= len(self._units):
                raise self._error("unclosed character class")
            character = self._meta()
            if character == "]" and found is not None:
                return found
            if character == "&" and self._meta(1) == "&":
                self._index += 2
                found = self._intersection(found)
                continue
            if character == "[":
                self._index += 1
                part = self._class()
            else:
                part = self._range()
            found = part if found is None else found.union(part)

    def _intersection(self, left: CharacterSet | None) -> CharacterSet:
        """Behind `&&`. What follows is a class up to the next `&&` or the end."""
        right: CharacterSet | None = None
        while self._meta() not in ("]", "&"):
            if self._index >= len(self._units):
                raise self._error("unclosed character class")
            if self._meta() == "[":
                self._index += 1
                part = self._class()
            else:
                part = self._union()
            right = part if right is None else right.union(part)
        if right is None or left is None:
            raise self._error("an intersection with one side only is not supported")
        return left.intersection(right)

    def _range(self) -> CharacterSet:
        ignores_case = "i" in self._flags
        if self._accept("\\"):
            members = self._class_escape()
            if members is not None:
                return members
            first = self._escaped_character()
        else:
            first = self._take()
        if (
            self._meta() != "-"
            or self._index + 1 >= len(self._units)
            or self._meta(1) in ("[", "]")
        ):
            return character_sets.single(first, ignores_case=ignores_case)
        self._index += 1
        start = self._index
        last = self._escaped_character() if self._accept("\\") else self._take()
        if last < first:
            self._index = start
            raise self._error("illegal character range")
        return character_sets.character_range(first, last, ignores_case=ignores_case)

    def _class_escape(self) -> CharacterSet | None:
        if self._meta() == "v" and self._meta(1) == "-":
            raise self._error("\\v as a part of a range is not supported")
        return self._escaped_set()
