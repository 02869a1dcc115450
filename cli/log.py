"""`ottla log`: look into log files on disk. The broker is not asked and may be stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.session import reported

EXAMPLES = """\
  ottla log dump ottla-data/orders-0/00000000000000000000.log
  ottla log dump ottla-data/orders-0/00000000000000000000.log --payload --limit 10
  ottla log verify ottla-data
  ottla log index-check ottla-data/orders-0
"""

app = family("Look into log files on disk; no broker is asked. JSON, one object a line.", EXAMPLES)

FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE...", show_default=False)]
DirectoriesArgument = Annotated[
    list[str],
    typer.Argument(metavar="DIRECTORY...", help="Of logs or of partitions.", show_default=False),
]


@app.command()
def dump(
    files: FilesArgument,
    records: Annotated[bool, typer.Option("--records", help="Also each record.")] = False,
    payload: Annotated[bool, typer.Option("--payload", help="With keys and values.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Lines of each file.")] = None,
) -> None:
    """What is in log, index, snapshot and checkpoint files."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.dump(files, sys.stdout, records=records, payload=payload, limit=limit))


@app.command()
def verify(
    directories: DirectoriesArgument,
    deep: Annotated[bool, typer.Option("--deep", help="Decompress every record.")] = False,
) -> None:
    """Are the files sound? Exit code 1 when they are not."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.verify(directories, sys.stdout, deep=deep))


@app.command("index-check")
def index_check(directories: DirectoriesArgument) -> None:
    """Do the indexes fit their logs? Exit code 1 when they do not."""
    from ottla.cli import log_tools

    _end(lambda: log_tools.index_check(directories, sys.stdout))


def _end(run: Callable[[], int]) -> None:
    codes: list[int] = []
    reported(lambda: codes.append(run()))
    raise typer.Exit(codes[0])
