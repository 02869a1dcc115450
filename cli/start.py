"""`ottla start` in the list of commands and in --help; `ottla.cli.main` runs it without Typer."""

from __future__ import annotations

import typer

from ottla.cli.app import family

app = family("Start a broker.")


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def start(context: typer.Context) -> None:
    """Start a broker."""
    from ottla.broker.__main__ import main

    raise typer.Exit(main(context.args))
