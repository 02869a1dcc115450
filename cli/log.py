"""`ottla log`: log files on disk, without a broker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ottla.cli import log_set_aside
from ottla.cli.app import family
from ottla.cli.session import reported

EXAMPLES = """\
  ottla log dump ottla-data/orders-0/00000000000000000000.log
  ottla log dump ottla-data/orders-0/00000000000000000000.log --payload
  ottla log verify ottla-data
  ottla log index-check ottla-data/orders-0
  ottla log set-aside list ottla-data
"""

app = family(
    "Dump and verify log files on disk; take back what was set aside. Without a broker.", EXAMPLES
)
app.add_typer(log_set_aside.app, name="set-aside")

FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE...", show_default=False)]
DirectoriesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DIRECTORY...", help="Log directories or partition directories.", show_default=False
    ),
]


@app.command()
def dump(
    files: FilesArgument,
    records: Annotated[bool, typer.Option("--records", help="Also print each record.")] = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print records with keys and values.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum lines of each file.")
    ] = None,
) -> None:
    """Print the content of log, index, snapshot and checkpoint files as JSON, one object a line."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.dump(files, sys.stdout, records=records, payload=payload, limit=limit))


@app.command()
def verify(
    directories: DirectoriesArgument,
    deep: Annotated[bool, typer.Option("--deep", help="Decompress every record.")] = False,
) -> None:
    """Verify log directories, as JSON. Exit code 1 if a file is damaged."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.verify(directories, sys.stdout, deep=deep))


@app.command("index-check")
def index_check(directories: DirectoriesArgument) -> None:
    """Verify that indexes match their logs. Exit code 1 if one does not."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.index_check(directories, sys.stdout))


def _end(run: Callable[[], int]) -> None:
    codes: list[int] = []
    reported(lambda: codes.append(run()))
    raise typer.Exit(codes[0])
