"""Commands in README.md and docs/: a test runs each block, or a line here states why none can."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ottla.broker.__main__ import USAGE
from ottla.cli.app import app
from ottla.cli.healthcheck import USAGE as HEALTHCHECK_USAGE
from ottla.cli.kafka_flags import TOOLS
from ottla.cli.kafka_tools import plan
from ottla.cli.zookeeper import _parser
from tests.doubles.page_commands import blocks_of, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Modules whose texts recommend commands.
ADVISERS = [
    each
    for part in ("broker", "cli", "controller", "storage")
    for each in sorted((ROOT / part).rglob("*.py"))
    if "`ottla " in each.read_text(encoding="utf-8")
]
# The pages whose marked blocks a module runs; it names the page.
RUN_BY = {
    "docs/quickstart.md": "tests/quickstarts/run.py",
    "docs/spark/connect.md": "tests/spark/pages.py",
    "docs/spark/standalone.md": "tests/spark/pages.py",
}
OTHERS_RUN_BY = "tests/integration/test_documented_commands.py"
NOT_RUN = ROOT / "tests" / "tidy" / "commands_not_run.txt"
# The list only gets shorter: a new command runs in a test.
LONGEST_LIST = 22
REASON_CHARACTERS = 15

OTTLA = re.compile(r"(?:`|^|[|&(] ?)ottla ([^\n`|&)]+)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
WITHOUT_TYPER = {
    "healthcheck": HEALTHCHECK_USAGE,
    "start": USAGE,
    "zookeeper": _parser().format_help(),
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def not_run() -> dict[tuple[str, str], str]:
    """(page, first line of the block): the reason."""
    rows = [
        [part.strip() for part in line.split(" :: ")]
        for line in NOT_RUN.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(len(row) == 3 for row in rows), "page :: first line of the block :: reason"
    return {(page, first): reason for page, first, reason in rows}


def shell_blocks() -> dict[tuple[str, str], bool]:
    """(page, first line): whether a test runs the block."""
    return {
        (name(page), block.first_line): block.runs
        for page in PAGES
        for block in blocks_of(page)
        if block.is_shell
    }


def test_each_block_of_commands_runs_or_has_a_reason() -> None:
    listed, blocks = not_run(), shell_blocks()
    missing = [key for key, runs in blocks.items() if not runs and key not in listed]
    assert not missing, f"put <!-- runs --> before it and run it: {OTHERS_RUN_BY}"
    stale = [key for key in listed if blocks.get(key, True)]
    assert not stale, f"these run, or are gone: take the lines out of {NOT_RUN.name}"
    assert all(len(reason) >= REASON_CHARACTERS for reason in listed.values())


def test_the_list_only_gets_shorter() -> None:
    assert len(not_run()) == LONGEST_LIST, "lower LONGEST_LIST; it is never raised"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_have_a_language(page: Path) -> None:
    """Without one, commands would pass as text; indented blocks have none."""
    text = page.read_text(encoding="utf-8")
    assert not [block.first_line for block in blocks_of(page) if not block.language]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = outside.splitlines()
    indented = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line.startswith("    ") and not before.strip() and not line.lstrip().startswith("|")
    ]
    assert not indented, "put it between fences"


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=name)
def test_a_module_runs_the_marked_blocks(page: Path) -> None:
    module = RUN_BY.get(name(page), OTHERS_RUN_BY)
    assert page.name in (ROOT / module).read_text(), f"{module} does not run {name(page)}"


def command_named(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the other words; ValueError if there is none."""
    found: Any = get_command(app)
    for number, word in enumerate(words):
        if not hasattr(found, "get_command") or not re.fullmatch("[a-z][a-z-]*", word):
            return found, words[number:]
        found = found.get_command(None, word)
        if found is None:
            raise ValueError(word)
    return found, []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page: Path) -> None:
    """Also of those in the text and in tables."""
    check_commands(re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8")))


def check_commands(text: str) -> None:
    for written in OTTLA.findall(text):
        words = written.replace("[", " ").replace("]", " ").split(" #")[0].split()
        if words[0] in TOOLS and "--help" in words:
            continue
        words = plan(words, get_command(app)._options_of).lines[0]  # type: ignore[attr-defined]
        command, rest = command_named(words)
        known = {option for each in command.params for option in each.opts} | {"--help"}
        usage = WITHOUT_TYPER.get(words[0])
        if usage is not None:
            known |= set(OPTION.findall(usage))
        if words[0] == "spark" and any(word.endswith(".py") for word in rest):
            rest = rest[: next(i for i, word in enumerate(rest) if word.endswith(".py"))]
        options = OPTION.findall(" ".join(rest))
        assert not [option for option in options if option not in known], written


def texts_of(module: Path) -> Iterator[str]:
    """The strings of a module, with `X` for what is formatted into them."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("module", ADVISERS, ids=name)
def test_commands_that_are_recommended_exist(module: Path) -> None:
    """In findings, faults and errors: their readers have no other way."""
    for text in texts_of(module):
        for quoted in re.findall(r"`ottla [^`{}]+`", text):
            check_commands(quoted)


def test_words_of_a_command_are_split_as_a_shell_does() -> None:
    """No block has an open quotation mark."""
    for page in PAGES:
        for block in blocks_of(page):
            if block.is_shell:
                assert shlex.split(block.text, comments=True)


def test_extras_that_an_error_names_are_on_the_first_pages() -> None:
    named = {
        extra
        for part in ("broker", "cli", "controller", "storage")
        for path in (ROOT / part).rglob("*.py")
        for extra in re.findall(r"ottla\[([a-z-]+)\]", path.read_text(encoding="utf-8"))
    }
    assert named
    for page in ("README.md", "docs/install.md"):
        found = set(re.findall(r"`(?:pip install ')?\.\[([a-z-]+)\]", (ROOT / page).read_text()))
        assert named <= found, page
    assert "`password.encoder.secret`" in (ROOT / "README.md").read_text()
