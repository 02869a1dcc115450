"""Every figure of docs/sizing.md is one of the pages that hold measurements."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
# A number with its unit or not: 44.1, 38,632, 0.249.
_FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w])")


def test_the_figures_are_measured() -> None:
    sources = (DOCS / "performance.md").read_text("utf-8") + (DOCS / "limits.md").read_text("utf-8")
    rows = [
        line
        for line in (DOCS / "sizing.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and re.search(r"\d", line)
    ]
    assert len(rows) > 10
    for row in rows:
        _, _, figures = row[2:].partition(" | ")
        for figure in _FIGURE.findall(figures):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d])", sources), (row, figure)
