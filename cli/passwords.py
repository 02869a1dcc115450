"""Passwords of commands: from a file, a prompt or standard input, never from the command line,
which every user of the machine can read."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ottla.broker.config.text_file import PASSWORD_BYTES_MAX, read_text_file
from ottla.cli.output import usage

PasswordFileOption = Annotated[
    str, typer.Option("--password-file", help="File with the password; else a prompt or stdin.")
]


def read_password(
    path: str, user: str, *, option: str = "--password-file", confirm: bool = True
) -> str:
    """Without the line end. Raises Failure if it is empty or cannot be read."""
    if path:
        try:
            text = read_text_file(path, PASSWORD_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"{option}: cannot read {path}: {error}.") from None
    elif sys.stdin.isatty():
        text = typer.prompt(
            f"Secret of {user}", hide_input=True, confirmation_prompt=confirm, err=True
        )
    else:
        try:
            text = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise usage(f"standard input: {error}.") from None
    password = text.rstrip("\r\n")
    if not password:
        raise usage(f"the secret of {user} is empty.")
    return password
