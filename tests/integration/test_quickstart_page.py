"""docs/quickstart.md: the Python program of the page runs; `make test-quickstarts` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.quickstarts.run import ADDRESS, PAGE, read_page, run


def test_the_page_has_five_programs() -> None:
    programs, expected = read_page(PAGE.read_text())
    assert [program.language for program in programs] == ["Python", "Java", "Go", "Node", "Rust"]
    assert expected == "42 two coffees"
    for program in programs:
        assert any(ADDRESS in text for text in program.files.values()), program.language


def test_the_python_program_prints_what_the_page_says(tmp_path: Path) -> None:
    programs, expected = read_page(PAGE.read_text())
    # The client is installed here already.
    python = programs[0]._replace(commands=f"{sys.executable} orders.py\n")
    assert run(python, tmp_path / "client") == expected
