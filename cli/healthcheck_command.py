"""`ottla healthcheck` for shell completion; `ottla.cli.main` runs it without Typer."""

from __future__ import annotations

import typer

from ottla.cli.app import family
from ottla.cli.healthcheck import main

app = family("Check whether a broker serves clients. Fast, for containers.")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def healthcheck(context: typer.Context) -> None:
    """Check whether a broker serves clients. Fast, for containers."""
    raise typer.Exit(main(context.args))
