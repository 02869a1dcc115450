"""A parsed regular expression."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.broker.security.java_regex.character_sets import CharacterSet


class PatternError(ValueError):
    """`position` is the index of the character that is wrong or not supported."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class Greed(Enum):
    GREEDY = 0
    LAZY = 1
    POSSESSIVE = 2


class Place(Enum):
    """Where the text has to be; no character is consumed."""

    START = 0
    LINE_START = 1
    END = 2
    LAST_LINE_END = 3
    LINE_END = 4
    WORD_BOUNDARY = 5
    NO_WORD_BOUNDARY = 6
    UNIX_LINE_START = 7
    UNIX_LAST_LINE_END = 8
    UNIX_LINE_END = 9


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set. `literal` is the only member, if there is one."""

    members: CharacterSet
    literal: str | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`number` is None for a group that captures nothing."""

    body: Node
    number: int | None


@dataclass(frozen=True, slots=True)
class Repeat:
    body: Node
    least: int
    most: int | None
    greed: Greed


@dataclass(frozen=True, slots=True)
class Independent:
    """`(?>...)`: the first match of the body is the only one."""

    body: Node


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead, or a lookbehind over `least` to `most` characters."""

    body: Node
    is_negative: bool
    behind: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Reference:
    """The text of a group again."""

    number: int
    ignores_case: bool


@dataclass(frozen=True, slots=True)
class Anchor:
    place: Place


Node = Characters | Sequence | Choice | Group | Repeat | Independent | Look | Reference | Anchor


@dataclass(frozen=True, slots=True)
class Tree:
    root: Node
    groups: int
    names: dict[str, int]


def lengths(node: Node) -> tuple[int, int | None]:
    """The least and the most characters that a node takes; None without a limit."""
    match node:
        case Characters():
            return 1, 1
        case Sequence(parts):
            every = [lengths(part) for part in parts]
            return sum(least for least, _ in every), _sum([most for _, most in every])
        case Choice(options):
            every = [lengths(option) for option in options]
            limits = [most for _, most in every]
            known = [most for most in limits if most is not None]
            return min(least for least, _ in every), max(known) if len(known) == len(
                limits
            ) else None
        case Group(body) | Independent(body):
            return lengths(body)
        case Repeat(body, least, most, greed):
            shortest, longest = lengths(body)
            if (
                isinstance(body, Group)
                and greed is not Greed.POSSESSIVE
                and (least, most) != (0, 1)
            ):
                # Java finds no limit for a group that it repeats in a loop, and none in
                # look-behind.
                longest = longest if is_deterministic(body.body) else None
            limit = None if most is None or longest is None else most * longest
            return shortest * least, limit
        case Reference():
            return 0, None
        case Look() | Anchor():
            return 0, 0


def _sum(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return sum(known) if len(known) == len(limits) else None


def is_deterministic(node: Node) -> bool:
    """Whether Java takes a node to match in one way only (`Node.study`): it repeats a group with
    such a body without looking at its inside again."""
    match node:
        case Sequence(parts):
            return all(map(is_deterministic, parts))
        case Choice():
            return False
        case Repeat(body, least, most):
            if (least, most) == (0, 1):
                return False
            return least == most and is_deterministic(body)
        case Group(body) | Independent(body):
            return is_deterministic(body)
        case _:
            return True


def has_groups(node: Node) -> bool:
    """Whether a node captures something."""
    match node:
        case Group(body, number):
            return number is not None or has_groups(body)
        case Sequence(parts):
            return any(map(has_groups, parts))
        case Choice(options):
            return any(map(has_groups, options))
        case Repeat(body) | Independent(body) | Look(body):
            return has_groups(body)
        case _:
            return False
