"""The `ottla` command in this process: what a user would see, and the exit code.

ottla = CommandLine(broker.bootstrap)
assert ottla("topics", "list").output == "..."
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from typer.testing import CliRunner

from ottla.cli.app import app


class Outcome(NamedTuple):
    """What came of one command."""

    code: int
    output: str
    errors: str

    @property
    def value(self) -> Any:
        """The output as JSON; Any because every command has its own shape."""
        return json.loads(self.output)

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line of a table."""
        return [line.split() for line in self.output.splitlines()]


class CommandLine:
    """Runs commands on one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {"OTTLA_BOOTSTRAP": bootstrap, "COLUMNS": "200"}

    def __call__(self, *arguments: str, text: str | bytes = "") -> Outcome:
        done = CliRunner().invoke(
            app, list(arguments), input=text, env=self.environment, prog_name="ottla"
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    def done(self, *arguments: str, text: str | bytes = "") -> Outcome:
        """A command that must succeed."""
        response = self(*arguments, text=text)
        assert response.code == 0, response
        return response
