"""The commands that errors, notes and findings name exist, with the options that they name."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from typer.main import get_command

from ottla.cli.app import app
from ottla.cli.families import DIRECT
from ottla.cli.kafka_flags import TOOLS
from tests.tidy.source_tree import ROOT

GROUP: Any = get_command(app)
# Forms of commands in docstrings.
_FORMS = ("--help", "log dump|verify|index-check")


def _named() -> list[str]:
    texts = (
        node.value
        for package in ("cli", "broker", "controller", "storage")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return sorted({line for text in texts for line in re.findall(r"`ottla ([^`]*)`", text)})


NAMED = _named()


@pytest.mark.parametrize("line", NAMED)
def test_a_named_command_exists(line: str) -> None:
    name, *words = line.split()
    if name in TOOLS or name in DIRECT or line in _FORMS:
        return
    command = GROUP.get_command(None, name)
    assert command is not None
    while words and (commands := getattr(command, "commands", None)):
        assert words[0] in commands
        command = commands[words.pop(0)]
    options = {each for parameter in command.params for each in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--") or re.fullmatch(r"-[a-z]", word):
            assert word.partition("=")[0] in options


def test_commands_are_found() -> None:
    assert len(NAMED) > 100
    assert set(_FORMS) <= set(NAMED)
