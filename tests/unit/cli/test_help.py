"""`--help` of every command has text, and examples of that command."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command

from ottla.broker.__main__ import USAGE as START
from ottla.cli.app import app
from ottla.cli.healthcheck import USAGE as HEALTHCHECK
from ottla.cli.zookeeper import DESCRIPTION as ZOOKEEPER
from ottla.cli.zookeeper import main as zookeeper


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
# Commands without Typer have their own help texts.
LENIENT: dict[str, Any] = {"resilient_parsing": True, "max_content_width": 80}
OWN_HELP = {
    "ottla start": START,
    "ottla healthcheck": HEALTHCHECK,
    "ottla zookeeper": ZOOKEEPER,
}


@pytest.mark.parametrize("typed", ALL)
def test_help_has_examples(typed: str) -> None:
    command = ALL[typed]
    text = OWN_HELP.get(typed) or f"{command.help}\n{command.epilog or ''}"
    _, found, examples = text.partition("Examples:")
    assert found
    shown = typed.replace("cluster doctor", "doctor")  # one command under two names
    assert any(f"{shown} " in f"{line} " for line in examples.splitlines())


@pytest.mark.parametrize("typed", ALL)
def test_help_fits_80_columns_and_has_no_python_types(typed: str) -> None:
    command = ALL[typed]
    text = OWN_HELP.get(typed) or command.get_help(command.make_context(typed, [], **LENIENT))
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(int|str|float|bool|path)|\bint range\b|<class", text)


@pytest.mark.parametrize("typed", [typed for typed in ALL if typed not in OWN_HELP])
def test_examples_come_before_options(typed: str) -> None:
    command = ALL[typed]
    text = command.get_help(command.make_context(typed, [], **LENIENT))
    assert 0 < text.index("Examples:") < text.index("Options:")


def test_a_wrong_number_is_explained_without_python_types() -> None:
    command = ALL["ottla cluster start"]
    with pytest.raises(Exception, match="'x' is not a valid whole number") as failed:
        command.make_context("ottla", ["--brokers", "x"])
    assert "int" not in failed.value.format_message()  # type: ignore[attr-defined]


def test_zookeeper_explains_a_wrong_port(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zookeeper(["--port", "x"])
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


def test_the_help_of_zookeeper_has_examples_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        zookeeper(["--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert 0 < text.index("Examples:") < text.index("options:")


def test_there_are_as_many_as_there_should_be() -> None:
    assert len(ALL) > 40
