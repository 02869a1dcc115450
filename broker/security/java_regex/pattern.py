"""Regular expressions that match as those of `java.util.regex` do: settings of a Kafka cluster
have them.

Python's `re` differs in what `\\d`, `\\w`, `.` and `$` are, in groups that are repeated, in
classes and in replacements; and it has no limit of time.
"""

from __future__ import annotations

from ottla.broker.security.java_regex.machine import MAX_STEPS, Machine
from ottla.broker.security.java_regex.parser import parse
from ottla.broker.security.java_regex.program import compile_tree

_DIGITS = "0123456789"


class ReplacementError(ValueError):
    """A replacement that Java rejects when it is used."""


class JavaPattern:
    """A compiled expression."""

    def __init__(self, pattern: str) -> None:
        """Raises PatternError."""
        tree = parse(pattern)
        self.pattern = pattern
        self.group_count = tree.groups
        self._names = tree.names
        self._program = compile_tree(tree)

    def matches(self, text: str, max_steps: int = MAX_STEPS) -> bool:
        """Whether the whole of `text` matches. Raises TooManySteps."""
        machine = Machine(text, self.group_count, max_steps)
        return machine.match(self._program, 0, end=len(text)) is not None

    def groups_of(self, text: str, max_steps: int = MAX_STEPS) -> list[str | None] | None:
        """The text of each group if the whole of `text` matches. Raises TooManySteps."""
        machine = Machine(text, self.group_count, max_steps)
        if machine.match(self._program, 0, end=len(text)) is None:
            return None
        return [None if each is None else text[each[0] : each[1]] for each in machine.groups]

    def match_prefix(
        self, text: str, max_steps: int = MAX_STEPS
    ) -> list[tuple[int, int] | None] | None:
        """The groups of a match at the start of `text`, the match itself first; `lookingAt`."""
        machine = Machine(text, self.group_count, max_steps)
        end = machine.match(self._program, 0)
        return None if end is None else [(0, end), *machine.groups[1:]]

    def find_all(self, text: str, max_steps: int = MAX_STEPS) -> list[list[tuple[int, int] | None]]:
        """The groups of each match one after the other, the match itself first. Raises
        ReplacementError and TooManySteps."""
        machine = Machine(text, self.group_count, max_steps)
        found: list[list[tuple[int, int] | None]] = []
        start = 0
        while start <= len(text):
            end = machine.match(self._program, start)
            if end is None:
                start += 1
                continue
            found.append([(start, end), *machine.groups[1:]])
            if end == start and text[start : start + 1] > "\uffff":
                # Java would continue between the two halves of its UTF-16 form.
                raise ReplacementError(f"an empty match stands before {text[start]!r}")
            # Behind an empty match the next one begins a character later.
            start = end + 1 if end == start else end
            machine.forget()
        return found

    def replace_all(self, text: str, replacement: str) -> str:
        """`Matcher.replaceAll`. Raises ReplacementError and TooManySteps."""
        return self._replaced(text, replacement, self.find_all(text))

    def replace_first(self, text: str, replacement: str) -> str:
        """`Matcher.replaceFirst`. Raises ReplacementError and TooManySteps."""
        return self._replaced(text, replacement, self.find_all(text)[:1])

    def _replaced(
        self, text: str, replacement: str, found: list[list[tuple[int, int] | None]]
    ) -> str:
        out: list[str] = []
        position = 0
        for groups in found:
            start, end = groups[0] or (0, 0)
            out += (text[position:start], self._expanded(text, replacement, groups))
            position = end
        return "".join((*out, text[position:]))

    def _expanded(self, text: str, replacement: str, groups: list[tuple[int, int] | None]) -> str:
        out: list[str] = []
        index = 0
        while index < len(replacement):
            character = replacement[index]
            index += 1
            if character == "\\":
                if index == len(replacement):
                    raise ReplacementError("a replacement ends with a backslash")
                out.append(replacement[index])
                index += 1
            elif character == "$":
                number, index = self._reference(replacement, index)
                span = groups[number]
                if span is not None:
                    out.append(text[span[0] : span[1]])
            else:
                out.append(character)
        return "".join(out)

    def _reference(self, replacement: str, index: int) -> tuple[int, int]:
        """The group that stands behind a `$`, and where it ends."""
        if replacement[index : index + 1] == "{":
            return self._named(replacement, index + 1)
        digit = replacement[index : index + 1]
        if not digit or digit not in _DIGITS:
            raise ReplacementError("a $ in a replacement is not followed by the number of a group")
        number = int(digit)
        index += 1
        while index < len(replacement) and replacement[index] in _DIGITS:
            longer = number * 10 + int(replacement[index])
            if longer > self.group_count:
                break
            number = longer
            index += 1
        if number > self.group_count:
            raise ReplacementError(f"a replacement has ${number}, and the pattern no such group")
        return number, index

    def _named(self, replacement: str, index: int) -> tuple[int, int]:
        end = replacement.find("}", index)
        name = replacement[index:end] if end >= 0 else ""
        if name not in self._names:
            raise ReplacementError(f"a replacement has ${{{name}}}, and the pattern no such group")
        return self._names[name], end + 1
