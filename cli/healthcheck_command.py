"""`ottla healthcheck` for shell completion; running it goes straight to `ottla.cli.healthcheck`."""

from __future__ import annotations

import typer

from ottla.cli.app import family
from ottla.cli.healthcheck import main

app = family("Is the broker alive? Fast, for containers.")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def healthcheck(context: typer.Context) -> None:
    """Is the broker alive? Fast, for containers."""
    raise typer.Exit(main(context.args))
