"""The commands of a page of the documentation that a test runs: those with a mark before them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"^<!-- runs(?P<background> in the background)? -->\n```bash\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^<!-- runs.*-->$", re.MULTILINE)


class Commands(NamedTuple):
    """The lines of one block."""

    text: str
    in_background: bool


def commands_of(page: Path) -> list[Commands]:
    """In the order of the page; fails if a mark has no block of commands after it."""
    content = page.read_text(encoding="utf-8")
    found = [
        Commands(match["text"], match["background"] is not None)
        for match in BLOCK.finditer(content)
    ]
    assert len(found) == len(MARK.findall(content)), f"a mark in {page} has no block"
    return found
