"""`ottla zookeeper` for shell completion; `ottla.cli.main` runs it without Typer."""

from __future__ import annotations

import typer

from ottla.cli.app import family
from ottla.cli.zookeeper import main

app = family("Start a ZooKeeper server without Java, for development.")


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def zookeeper(context: typer.Context) -> None:
    """Start a ZooKeeper server without Java, for development."""
    raise typer.Exit(main(context.args))
