"""Runs a program over a text.

The order in which possibilities are tried is Java's, so match and groups are. A machine counts its
steps and stops at a limit: Java has none, and a client that chooses its name could keep it busy.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from ottla.broker.security.java_regex.character_sets import LINE_TERMINATORS, CharacterSet, is_word
from ottla.broker.security.java_regex.program import Op, Program
from ottla.broker.security.java_regex.tree import Greed, Place

#: Some ten milliseconds. A rule of Kafka's documentation takes less than 100 for a name.
MAX_STEPS = 20_000

# Plain numbers: comparing members of an IntEnum takes longer than most steps.
_TEXT, _ONE_OF, _RUN, _SPLIT, _JUMP, _MARK, _CAPTURE = map(int, tuple(Op)[:7])
_STUCK, _PLACE, _REFERENCE, _LOOK, _INDEPENDENT, _MATCH = map(int, tuple(Op)[7:])

# A run compares characters much faster than the machine takes steps.
_CHARACTERS_OF_A_STEP = 8


class TooManySteps(ValueError):
    """The limit of steps is reached."""


class Machine:
    """Matches programs against one text. `groups` are (start, end) of each group, or None."""

    def __init__(self, text: str, groups: int, max_steps: int = MAX_STEPS) -> None:
        self.text = text
        self.groups: list[tuple[int, int] | None] = [None] * (groups + 1)
        self._left = max_steps
        self._seen: set[tuple[int, int]] = set()

    def match(self, program: Program, start: int, *, end: int | None = None) -> int | None:
        """Where a match that begins at `start` ends, and at `end` if that is given; None without
        one. Raises TooManySteps."""
        self._seen = set() if end is not None else self._seen
        self.groups = [None] * len(self.groups)
        return self._run(program, start, end, self._seen if program.is_plain else None)

    def forget(self) -> None:
        """Another match may begin where this one had been."""
        self._seen = set()

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps("a pattern takes too many steps")

    def _run(  # noqa: PLR0912 (a branch for each instruction)
        self, program: Program, start: int, end: int | None, seen: set[tuple[int, int]] | None
    ) -> int | None:
        """Without a match the groups are as before."""
        text, groups, instructions = self.text, self.groups, program.instructions
        length = len(text)
        registers = [0] * program.registers
        # What to try next: ("at", instruction, position), a run, or what to restore before.
        stack: list[tuple[Any, ...]] = []
        at, position = 0, start
        while True:
            self._spend(1)
            instruction: tuple[Any, ...] = instructions[at]
            op = instruction[0]
            at += 1
            is_good = True
            if op == _TEXT:
                is_good = text.startswith(instruction[1], position)
                position += len(instruction[1])
            elif op == _ONE_OF:
                is_good = position < length and instruction[1][text[position]]
                position += 1
            elif op == _RUN:
                run = self._start_run(instruction, at, position)
                if run is not None:
                    stack.append(run)
                is_good = False  # the run is the first to try
            elif op == _SPLIT:
                is_good = seen is None or (at, position) not in seen
                if is_good:
                    if seen is not None:
                        seen.add((at, position))
                    at = instruction[1]
                    stack.append((_AT, instruction[2], position))
            elif op == _JUMP:
                at = instruction[1]
            elif op == _MARK:
                stack.append((_REGISTER, instruction[1], registers[instruction[1]]))
                registers[instruction[1]] = position
            elif op == _CAPTURE:
                stack.append((_GROUP, instruction[1], groups[instruction[1]]))
                groups[instruction[1]] = (registers[instruction[2]], position)
            elif op == _STUCK:
                if position == registers[instruction[1]]:
                    at = instruction[2]
            elif op < _MATCH:
                found = self._consume(op, instruction, position)
                is_good = found is not None
                position = position if found is None else found
            elif end is None or position == end:
                return position
            else:
                is_good = False
            if is_good:
                continue
            resumed = self._resume(stack, registers, instructions, seen)
            if resumed is None:
                return None
            at, position = resumed

    def _consume(self, op: int, instruction: tuple[Any, ...], position: int) -> int | None:
        """Where the text of one of the rarer instructions ends; None if it is not there."""
        if op == _PLACE:
            return position if _is_at(instruction[1], self.text, position) else None
        if op == _REFERENCE:
            return self._referenced(instruction[1], position, ignores_case=instruction[2])
        if op == _LOOK:
            return position if self._looks(instruction, position) else None
        return self._run(instruction[1], position, None, None)

    def _start_run(
        self, instruction: tuple[Any, ...], at: int, position: int
    ) -> tuple[Any, ...] | None:
        """The entry of the stack for a repetition of one set of characters."""
        members: CharacterSet = instruction[1]
        least, most, greed = instruction[2:]
        text, stop = self.text, len(self.text)
        if most is not None:
            stop = min(stop, position + most)
        limit = position
        while limit < stop and members[text[limit]]:
            limit += 1
        self._spend((limit - position) // _CHARACTERS_OF_A_STEP)
        first = position + least
        if limit < first:
            return None
        return (_GREEDY if greed is Greed.GREEDY else _LAZY, at, first, limit)

    def _resume(
        self,
        stack: list[tuple[Any, ...]],
        registers: list[int],
        instructions: list[Any],
        seen: set[tuple[int, int]] | None,
    ) -> tuple[int, int] | None:
        """The next possibility, as an instruction and a position; None when all failed."""
        while stack:
            self._spend(1)
            entry = stack.pop()
            kind = entry[0]
            if kind == _AT:
                return entry[1], entry[2]
            if kind == _REGISTER:
                registers[entry[1]] = entry[2]
            elif kind == _GROUP:
                self.groups[entry[1]] = entry[2]
            else:
                position = self._next_of_run(entry, instructions, stack)
                if position is None:
                    continue
                # Negative, so that it differs from the keys of splits.
                key = (-entry[1], position)
                if seen is not None:
                    if key in seen:
                        continue
                    seen.add(key)
                return entry[1], position
        return None

    def _next_of_run(
        self, entry: tuple[Any, ...], instructions: list[Any], stack: list[tuple[Any, ...]]
    ) -> int | None:
        """Where a repetition stops this time; positions whose next text is another one are left
        out."""
        kind, at, first, last = entry
        following = instructions[at]
        wanted = following[1] if following[0] == _TEXT else None
        if kind == _GREEDY:
            found = last if wanted is None else self.text.rfind(wanted, first, last + len(wanted))
            if found < 0:
                return None
            if found > first:
                stack.append((kind, at, first, found - 1))
            return found
        found = first if wanted is None else self.text.find(wanted, first, last + len(wanted))
        if found < 0:
            return None
        if found < last:
            stack.append((kind, at, found + 1, last))
        return found

    def _referenced(self, number: int, position: int, *, ignores_case: bool) -> int | None:
        found = self.groups[number] if number < len(self.groups) else None
        if found is None:
            return None
        wanted = self.text[found[0] : found[1]]
        end = position + len(wanted)
        here = self.text[position:end]
        self._spend(len(wanted) // _CHARACTERS_OF_A_STEP)
        if here == wanted:
            return end
        if ignores_case and _ascii_lower(here) == _ascii_lower(wanted):
            return end
        return None

    def _looks(self, instruction: tuple[Any, ...], position: int) -> bool:
        _, program, is_negative, behind = instruction
        if behind is None:
            found = self._run(program, position, None, None) is not None
        else:
            least, most = behind
            found = any(
                self._run(program, start, position, None) is not None
                for start in range(position - least, max(position - most, 0) - 1, -1)
            )
        return found is not is_negative


_AT, _REGISTER, _GROUP, _GREEDY, _LAZY = range(5)


def _ascii_lower(text: str) -> str:
    return "".join(each.lower() if each.isascii() else each for each in text)


def _is_at(place: Place, text: str, position: int) -> bool:
    length = len(text)
    before = text[position - 1] if position > 0 else ""
    after = text[position] if position < length else ""
    match place:
        case Place.START:
            return position == 0
        case Place.END:
            return position == length
        case Place.LINE_START:
            if not after:
                return False
            if not before:
                return True
            return before in LINE_TERMINATORS and not (before == "\r" and after == "\n")
        case Place.UNIX_LINE_START:
            return bool(after) and before in ("", "\n")
        case Place.UNIX_LINE_END:
            return after in ("", "\n")
        case Place.UNIX_LAST_LINE_END:
            return not after or (after == "\n" and position == length - 1)
        case Place.LINE_END | Place.LAST_LINE_END:
            return _is_line_end(place, text, position)
        case Place.WORD_BOUNDARY:
            return _is_boundary(text, position)
        case Place.NO_WORD_BOUNDARY:
            return not _is_boundary(text, position)


def _is_line_end(place: Place, text: str, position: int) -> bool:
    rest = text[position : position + 3]
    if not rest:
        return True
    if rest[0] not in LINE_TERMINATORS:
        return False
    if rest[0] == "\n" and position > 0 and text[position - 1] == "\r":
        return False  # between the two characters of one terminator
    return place is Place.LINE_END or len(rest) == 1 or rest == "\r\n"


def _is_boundary(text: str, position: int) -> bool:
    return _belongs_to_word(text, position - 1) is not _belongs_to_word(text, position)


def _belongs_to_word(text: str, position: int) -> bool:
    """A mark does where a letter or a digit stands before it."""
    if not 0 <= position < len(text):
        return False
    if is_word(text[position]):
        return True
    if unicodedata.category(text[position]) != "Mn":
        return False
    while position >= 0 and unicodedata.category(text[position]) == "Mn":
        position -= 1
    return position >= 0 and text[position] != "_" and is_word(text[position])
