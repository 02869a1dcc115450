"""With --json an error is a JSON object on standard error; results stay on standard output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.main import get_command

from ottla.cli.app import app
from ottla.cli.families import FAMILIES
from ottla.cli.healthcheck import main as healthcheck
from tests.doubles.command_line import CommandLine

# A port on which nothing listens.
AWAY = "127.0.0.1:1"


def commands() -> list[tuple[str, list[str]]]:
    """Each command with --json, and as many arguments as it needs."""
    found: list[tuple[str, list[str]]] = []

    def collect(command: Any, path: list[str]) -> None:
        for name, each in getattr(command, "commands", {}).items():
            collect(each, [*path, name])
        if any("--json" in getattr(each, "opts", ()) for each in command.params):
            found.append((" ".join(path), [*path, *_needed(command)]))

    group: Any = get_command(app)
    for name in FAMILIES:
        collect(group.get_command(None, name), [name])
    return found


def _needed(command: Any) -> list[str]:
    given: list[str] = []
    for each in command.params:
        if not each.required:
            continue
        if each.param_type_name == "option":
            given.append(each.opts[0])
        given += ["1"] * max(1, each.nargs)
    return given


@pytest.mark.parametrize(("name", "arguments"), commands(), ids=lambda each: str(each)[:40])
def test_an_error_is_json(name: str, arguments: list[str]) -> None:
    done = CommandLine(AWAY)(*arguments, "--json", "--timeout", "5")
    assert done.code != 0, name
    # Some ask before they delete.
    error = json.loads(done.errors[done.errors.index("{") :])
    assert list(error) == ["error", "exit_code"]
    assert (error["exit_code"], bool(error["error"])) == (done.code, True)


def test_there_are_commands() -> None:
    assert len(commands()) > 50


def test_wrong_usage_is_json() -> None:
    done = CommandLine(AWAY)("topics", "list", "--json", "--no-such-option")
    assert done.code == 2
    assert json.loads(done.errors) == {"error": "No such option: --no-such-option", "exit_code": 2}
    assert done.output == ""
    done = CommandLine(AWAY)("topics", "list", "--no-such-option")
    assert (done.code, done.errors.startswith("Usage: ")) == (2, True)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e10"])
def test_a_timeout_that_is_no_time_is_wrong_usage(seconds: str) -> None:
    done = CommandLine(AWAY)("topics", "list", "--json", "--timeout", seconds)
    assert done.code == 2
    assert "--timeout" in json.loads(done.errors)["error"]


def test_healthcheck(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck(["--json", "--no"], {}) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], "has no option --no" in found["reason"]) == (False, True)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("groups list --state stabel", "--state stabel is not one of PreparingRebalance, "),
        ("groups list --type modern", "--type modern is not one of classic, consumer, share"),
        ("migrate --to kafka-5", "the only migration that is checked is the one to kafka-4"),
    ],
)
def test_a_wrong_value_is_wrong_usage_before_a_connection(
    line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app([*line.split(), "--bootstrap", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
