"""`--help` of every command has text, and examples of that command."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from ottla.broker.__main__ import USAGE as START
from ottla.cli.app import app
from ottla.cli.healthcheck import USAGE as HEALTHCHECK


def commands(group: Any, path: str) -> dict[str, Any]:
    """Every command below a group by its command line."""
    found = {}
    for name in group.list_commands(None):
        command, typed = group.get_command(None, name), f"{path} {name}"
        if hasattr(command, "list_commands"):
            found.update(commands(command, typed))
        else:
            found[typed] = command
    return found


ALL = commands(get_command(app), "ottla")
# These two do not import Typer and have their own help texts.
OWN_HELP = {"ottla start": START, "ottla healthcheck": HEALTHCHECK}


@pytest.mark.parametrize("typed", ALL)
def test_help_has_examples(typed: str) -> None:
    command = ALL[typed]
    text = OWN_HELP.get(typed) or f"{command.help}\n{command.epilog or ''}"
    _, found, examples = text.partition("Examples:")
    assert found
    shown = typed.replace("cluster doctor", "doctor")  # one command under two names
    assert any(f"{shown} " in f"{line} " for line in examples.splitlines())


def test_there_are_as_many_as_there_should_be() -> None:
    assert len(ALL) > 40
