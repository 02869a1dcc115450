"""The `ottla` command: `start` goes straight to the broker, the rest is loaded when asked for.

Typer takes as long to import as the broker does to come up, so `start` and `healthcheck` must not
touch it.
"""

import sys


def main() -> None:
    """The console script."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["start"]:
        from ottla.broker.__main__ import main as start

        raise SystemExit(start(arguments[1:]))
    if arguments[:1] == ["healthcheck"]:
        from ottla.cli.healthcheck import main as healthcheck

        raise SystemExit(healthcheck(arguments[1:]))
    from ottla.cli.app import app

    app(prog_name="ottla")


if __name__ == "__main__":
    main()
