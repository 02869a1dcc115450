"""Texts in PEM in the forms in which people write them into settings."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Iterator

_ATTRIBUTES = "Bag Attributes\n    friendlyName: broker é\n    localKeyID: 54 69\nsubject=CN = x\n"

#: What becomes of a text in lines, where Kafka reads it.
KAFKAS: dict[str, Callable[[str], str]] = {
    "lines": str,
    "without the last end of line": lambda text: text.rstrip("\n"),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "attributes": lambda text: text.replace("-----BEGIN", f"{_ATTRIBUTES}-----BEGIN"),
    "indented": lambda text: textwrap.indent(text, "    "),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "text around": lambda text: f"# a comment\n{text}\nthe end\n",
    "byte order mark": lambda text: "\ufeff" + text,
    "a line for each": lambda text: _joined(text, " ").replace(" -----BEGIN", "\n-----BEGIN"),
}
#: Where it does not, or not all: no white space behind a marker, other signs for the end of a line.
OTHERS: dict[str, Callable[[str], str]] = {
    "blanks": lambda text: _joined(text, " "),
    "nothing": lambda text: _joined(text, ""),
    "backslash and n": lambda text: _joined(text, "\\n"),
    "backslash, r and n": lambda text: _joined(text, "\\r\\n") + "\\r\\n",
    "backslashes": lambda text: _joined(text, " \\ "),
    "lines with backslashes": lambda text: _joined(text, "\\\n"),
    "tabs": lambda text: _joined(text, "\t"),
}


def _joined(text: str, by: str) -> str:
    return by.join(text.strip().split("\n"))


def damaged(text: str, source: random.Random) -> Iterator[str]:
    """Texts that are no PEM any more."""
    lines = text.strip().split("\n")
    yield ""
    yield "garbage"
    yield lines[0]
    yield "\n".join(lines[:-1])
    yield "\n".join(lines[1:])
    yield text.replace(lines[1], "=" + lines[1][1:])
    yield text.replace(lines[1], lines[1][:-1])
    yield text.replace("END", "EMD")
    yield text.replace(lines[1], lines[1].replace(source.choice(lines[1]), "!"))
