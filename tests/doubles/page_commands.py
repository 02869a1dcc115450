"""The commands of a page of the documentation, and which of them a test runs.

A block that a test runs has a mark before it, a comment that a reader does not see:
`<!-- runs -->`, or `<!-- runs in the background -->` for what serves until it is stopped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

SHELL = ("sh", "bash", "console")
FENCE = re.compile(
    r"^(?:(?P<mark><!-- runs(?P<background> in the background)? -->)\n)?"
    r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^<!-- runs.*-->$", re.MULTILINE)


class Commands(NamedTuple):
    """The lines of one block."""

    text: str
    in_background: bool


class Block(NamedTuple):
    """A block of code in a page."""

    language: str
    text: str
    runs: bool
    in_background: bool
    title: str | None

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0].strip()


def blocks_of(page: Path) -> list[Block]:
    """All blocks between fences, in the order of the page."""
    return [
        Block(
            match["language"],
            match["text"],
            match["mark"] is not None,
            match["background"] is not None,
            match["title"],
        )
        for match in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def commands_of(page: Path) -> list[Commands]:
    """The blocks that run, in the order of the page; fails if a mark has no commands after it."""
    found = [
        Commands(block.text, block.in_background)
        for block in blocks_of(page)
        if block.runs and block.is_shell
    ]
    marks = len(MARK.findall(page.read_text(encoding="utf-8")))
    assert len(found) == marks, f"a mark in {page} has no block of commands"
    return found
