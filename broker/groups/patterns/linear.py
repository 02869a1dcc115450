"""Matches regular expressions in time linear in the length of the text, in Python alone.

For interpreters for which there is no package of RE2. A pattern becomes a nondeterministic finite
automaton (Thompson's construction); the sets of states that matching gets to are kept with what
follows them, so that a name usually costs one look-up for each character.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.groups.patterns.syntax import (
    WORD,
    Assertion,
    BadPattern,
    Characters,
    Choice,
    Node,
    Parser,
    Ranges,
    Repeat,
    Sequence,
)

# A character that leads to no known set costs a look at each step of the program. A topic name has
# at most 249 characters, so no name costs more than a quarter of a million looks.
MAX_STEPS = 1_000
MAX_KNOWN_SETS = 10_000  # then all are forgotten: a pattern can have exponentially many

_BEGIN = "begin"  # in place of the character before the first


class _Step(NamedTuple):
    """One place of the program: `ranges` consumes a character, an assertion checks
    the place in the text, and the next step follows. Without them `targets` follow."""

    ranges: Ranges | None = None
    assertion: str = ""
    targets: tuple[int, ...] = ()


def _is_word(character: str | None) -> bool:
    return (
        character is not None
        and len(character) == 1
        and any(first <= ord(character) <= last for first, last in WORD)
    )


def _holds(assertion: str, before: str, after: str | None) -> bool:
    """Between two characters; `before` is `_BEGIN` at the start, `after` None at the end."""
    if assertion == "begin_text":
        return before == _BEGIN
    if assertion == "end_text":
        return after is None
    if assertion == "begin_line":
        return before in (_BEGIN, "\n")
    if assertion == "end_line":
        return after in (None, "\n")
    return (_is_word(before) != _is_word(after)) == (assertion == "boundary")


class LinearPattern:
    """A pattern in RE2 syntax."""

    def __init__(self, text: str) -> None:
        """Raises BadPattern, also for what would take more than MAX_STEPS."""
        self._program: list[_Step] = []
        self._add(Parser(text).parse())
        self._end = len(self._program)
        self._known: dict[tuple[frozenset[int], str, str | None], frozenset[int]] = {}
        self._depends_on_before = any(step.assertion for step in self._program)

    def fullmatch(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        places, before = frozenset((0,)), _BEGIN
        for each in text:
            places = self._after(places, before, each)
            if not places:
                return False
            if self._depends_on_before:
                before = each
        return self._end in self._after(places, before, None)

    def _after(self, places: frozenset[int], before: str, character: str | None) -> frozenset[int]:
        """Where matching is after `character`; with None, where it is without consuming more."""
        key = (places, before, character)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_KNOWN_SETS:
                self._known.clear()
            found = self._known[key] = self._advance(places, before, character)
        return found

    def _advance(
        self, places: frozenset[int], before: str, character: str | None
    ) -> frozenset[int]:
        seen: set[int] = set()
        waiting = list(places)
        result: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if place == self._end:
                continue
            step = self._program[place]
            if step.assertion:
                if _holds(step.assertion, before, character):
                    waiting.append(place + 1)
            elif step.ranges is None:
                waiting += step.targets
            elif character is not None:
                code_point = ord(character)
                if any(first <= code_point <= last for first, last in step.ranges):
                    result.add(place + 1)
        return frozenset(seen if character is None else result)

    # The program.

    def _emit(self, step: _Step) -> int:
        if len(self._program) >= MAX_STEPS:
            raise BadPattern("pattern too large - compile failed")
        self._program.append(step)
        return len(self._program) - 1

    def _add(self, node: Node) -> None:
        """Append steps that match `node`; the next step follows them."""
        if isinstance(node, Characters):
            self._emit(_Step(node.ranges))
        elif isinstance(node, Assertion):
            self._emit(_Step(assertion=node.kind))
        elif isinstance(node, Sequence):
            for part in node.parts:
                self._add(part)
        elif isinstance(node, Choice):
            self._add_choice(node)
        else:
            self._add_repeat(node)

    def _add_choice(self, node: Choice) -> None:
        fork = self._emit(_Step())
        starts, jumps = [], []
        for part in node.parts:
            starts.append(len(self._program))
            self._add(part)
            jumps.append(self._emit(_Step()))
        self._program[fork] = _Step(targets=tuple(starts))
        for jump in jumps:
            self._program[jump] = _Step(targets=(len(self._program),))

    def _add_repeat(self, node: Repeat) -> None:
        for _ in range(node.least):
            self._add(node.part)
        if node.most is None:
            fork = self._emit(_Step())
            self._add(node.part)
            self._emit(_Step(targets=(fork,)))
            self._program[fork] = _Step(targets=(fork + 1, len(self._program)))
            return
        forks = []
        for _ in range(node.most - node.least):
            forks.append(self._emit(_Step()))
            self._add(node.part)
        for fork in forks:
            self._program[fork] = _Step(targets=(fork + 1, len(self._program)))
