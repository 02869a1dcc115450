"""The `ottla` command: `start` runs the broker directly, other commands are imported on use.

The import of Typer takes as long as the start of the broker, so `start`, `healthcheck` and
`zookeeper` do not import it.
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
    if arguments[:1] == ["zookeeper"]:
        from ottla.cli.zookeeper import main as zookeeper

        raise SystemExit(zookeeper(arguments[1:]))
    from ottla.cli.app import app

    app(prog_name="ottla")


if __name__ == "__main__":
    main()
