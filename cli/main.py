"""The `ottla` command.

The import of Typer takes as long as the start of the broker, so the commands of `DIRECT` do not
import it. Every other command imports the modules that it uses.
"""

import sys
from importlib import import_module

from ottla.cli.families import DIRECT


def main() -> None:
    """The console script."""
    name, *arguments = sys.argv[1:] or [""]
    if name in DIRECT:
        raise SystemExit(import_module(DIRECT[name]).main(arguments))
    from ottla.cli.app import app

    app(prog_name="ottla")


if __name__ == "__main__":
    main()
