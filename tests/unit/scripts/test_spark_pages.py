"""Commands in docs/spark/: they are valid shell, and name commands and options that exist."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ottla.cli.app import app
from pyspark_ottla.options.options import SOURCE_OPTIONS
from tests.doubles.page_commands import commands_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted((DOCS / "spark").glob("*.md"))
OTTLA = re.compile(r"\bottla ((?:[a-z-]+ )?[a-z-]+)((?: [^\n`|]*)?)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")


def command_named(words: list[str]) -> Any:
    """The command, and None if it is none."""
    found: Any = get_command(app)
    for word in words:
        if not hasattr(found, "get_command"):
            return found
        found = found.get_command(None, word)
        if found is None:
            return None
    return found


def joined(page: Path) -> str:
    return re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_run_are_valid_shell(page: Path) -> None:
    for block in commands_of(page):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert done.stderr == ""


@pytest.mark.parametrize("page", [*PAGES, DOCS / "spark.md"], ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    for match in OTTLA.finditer(joined(page)):
        words = match[1].split()
        command = command_named(words)
        assert command is not None, match[0]
        known = {option for parameter in command.params for option in parameter.opts}
        own = match[2].partition(" job.py")[0]
        for option in OPTION.findall(own):
            assert option in known, f"{match[0]}: {option}"


def test_every_option_of_the_source_is_documented() -> None:
    text = joined(DOCS / "spark.md") + joined(DOCS / "spark" / "formats.md")
    named = set(re.findall(r"`\.?([\w.…]+)`", text))
    shown = {*named, *(f"key{name[5:]}" for name in named if name.startswith("value"))}
    shown |= {f"schema.registry.{name}" for name in named}
    assert [option for option in SOURCE_OPTIONS if option not in shown] == []
