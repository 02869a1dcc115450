"""What the two compilers share: lines of source, the fields they stand for, names for objects."""

from __future__ import annotations

#: For each line of the source, counted from 1: the fields it reads or writes, each with its path,
#: its struct code and the expression of its value ("" where a line is not about fixed fields).
LineFields = dict[int, tuple[tuple[str, str, str], ...]]


class SourceWriter:
    """Collects the lines of one function and the global `names` that it uses."""

    def __init__(self, head: str, names: dict[str, object]) -> None:
        self.names = names
        self.lines = head.splitlines()
        self.line_fields: LineFields = {}
        self.indent = 2
        self.path: list[str] = []
        self._counter = 0

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def finish(self, tail: str) -> None:
        """Ends the function."""
        self.lines += tail.splitlines()
        self.names["LINES"] = self.line_fields

    def emit(self, text: str) -> None:
        """A line that is about the field whose path is being walked."""
        self.lines.append("    " * self.indent + text)
        self.line_fields[len(self.lines)] = ((self.place, "", ""),)

    def emit_fields(self, text: str, fields: tuple[tuple[str, str, str], ...]) -> None:
        """A line that reads or writes several fields."""
        self.emit(text)
        self.line_fields[len(self.lines)] = fields

    @property
    def place(self) -> str:
        """The dotted path of the field that is being walked."""
        return ".".join(self.path)

    def variable(self, prefix: str) -> str:
        """A name that is not taken."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, prefix: str, value: object) -> str:
        """A global name for `value`, the same one each time."""
        for known, other in self.names.items():
            if other is value:
                return known
        name = self.variable(prefix)
        self.names[name] = value
        return name
