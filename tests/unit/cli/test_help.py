"""`--help` of every command has text, and examples of that command."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from ottla.broker.__main__ import USAGE as START
from ottla.cli.app import _use_plain_words, app
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
    # The words of Typer up to 0.28, and those of Typer from 0.29 on.
    words = "'x' is not a valid whole number|Input should be a valid integer"
    with pytest.raises(Exception, match=words) as failed:
        command.make_context("ottla", ["--brokers", "x"])
    assert "int " not in failed.value.format_message()  # type: ignore[attr-defined]


class NewArgument:
    """A parameter as Typer has it from 0.29 on: no `type`, but an annotation."""

    param_type_name = "argument"
    name = "broker"
    metavar = None
    nargs = 1

    def __init__(self, annotation: Any) -> None:
        self.type_descriptor = SimpleNamespace(annotation=annotation)

    def display_type(self, context: Any) -> str:
        return f"<{self.type_descriptor.annotation.__name__}>"


@pytest.mark.parametrize(
    ("annotation", "shown"), [(int, "<whole number>"), (list[str], "<text>"), (bytes, "<bytes>")]
)
def test_parameters_of_a_newer_typer_are_shown_without_python_types(
    annotation: Any, shown: str
) -> None:
    parameter = NewArgument(annotation)
    _use_plain_words(SimpleNamespace(params=[parameter]))
    assert parameter.display_type(None) == shown
    assert parameter.metavar == (None if annotation is bytes else "BROKER")


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
