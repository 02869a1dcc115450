"""`ottla start`: reads the settings, runs a broker until it is stopped, logs what happens."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.exit_codes import exit_code
from ottla.broker.config.sources import IGNORE_VARIABLE
from ottla.broker.config.workers import check_no_worker_is_left, worker_count
from ottla.broker.observability.logs import LineFormatter, configure_logging

if TYPE_CHECKING:
    from ottla.broker.security.sasl.scram_admin import NewUser
    from ottla.broker.server.broker_server import BrokerServer

logger = logging.getLogger("ottla.broker")

USAGE = """\
Usage: ottla start [server.properties] [--override key=value]...
                   [--ignore-unknown PREFIX]... [--add-scram USER]...
                   [--workers N|auto]

Starts a broker. Without a settings file it listens on 127.0.0.1:9092 (with
zookeeper.connect on every address, as Kafka) and keeps its data in
./ottla-data. Settings are Kafka's; they come from the file, from KAFKA_... and
OTTLA_... environment variables (KAFKA_LOG_DIRS is log.dirs) and from
--override; the later one wins.

Examples:
  ottla start
  ottla start --workers auto
  ottla start server.properties
  ottla start --override listeners=PLAINTEXT://:9092 --override log.dirs=data
  KAFKA_LISTENERS=PLAINTEXT://:9092 ottla start

--ignore-unknown confluent. ignores the unknown settings that begin with
confluent. in each of them. Other unknown settings stop the start, except for
KAFKA_... variables, which are logged. OTTLA_IGNORE_UNKNOWN has such prefixes,
too, with commas.

--add-scram 'SCRAM-SHA-512=[name=admin,password-file=FILE]' (or password=...)
sets the password of a user before the broker serves clients, as kafka-storage
does; without ZooKeeper only.

--workers 4 starts four brokers of one cluster on this machine, --workers auto
one on each core (ottla.workers): the settings are those of the first, the
others have the next ports and ids, and directories inside the log directories.
One signal stops all. See docs/workers.md.
"""

# The options that have a value, and what it is.
_OPTIONS = {
    "--override": "key=value",
    "--add-scram": "SCRAM-SHA-512=[name=...,password=...]",
    "--ignore-unknown": "a prefix such as confluent.",
    "--workers": "a number, or auto",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a broker; returns the exit code: 0 after a clean stop, else that of `exit_codes`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    try:
        given = parse_arguments(arguments)
        ignored = [*given.ignored_prefixes, *os.environ.get(IGNORE_VARIABLE, "").split(",")]
        config = BrokerConfig.load(given.path, given.overrides, os.environ, ignored)
        new_users = _new_users(config, given.users)
        check_no_worker_is_left(config)
        lines = configure_logging(config)
    except ConfigError as error:
        print(f"ottla: {error}", file=sys.stderr)
        return exit_code(error)
    gc.disable()  # until the broker has started: there is no garbage, and looking takes time
    for warning in config.warnings:
        logger.warning("%s", warning)
    from ottla.broker.server.process import allow_many_files, dump_stacks_on_quit, run_process

    allow_many_files()
    dump_stacks_on_quit()
    if worker_count(config) > 1:
        from ottla.broker.workers.supervisor import supervise

        return supervise(config, lines, new_users)
    return run_process(_serve(config, lines, new_users))


class Arguments(NamedTuple):
    """A command line: settings file, overrides, users, prefixes of unknown settings."""

    path: str | None
    overrides: list[str]
    users: list[str]
    ignored_prefixes: list[str]


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Raises ConfigError when it is no command line."""
    path: str | None = None
    given: dict[str, list[str]] = {name: [] for name in _OPTIONS}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name in _OPTIONS:
            if not equals:
                if not rest:
                    raise ConfigError(f"{name} needs {_OPTIONS[name]} behind it.")
                value = rest.pop(0)
            given[name].append(value)
        elif argument.startswith("-"):
            raise ConfigError(f"unknown option {argument}; see `ottla start --help`.")
        elif path is None:
            path = argument
        else:
            raise ConfigError(f"one settings file is enough, {argument} is a second one.")
    overrides = [*given["--override"], *(f"ottla.workers={text}" for text in given["--workers"])]
    return Arguments(path, overrides, given["--add-scram"], given["--ignore-unknown"])


def _new_users(config: BrokerConfig, texts: Sequence[str]) -> list[NewUser]:
    """The users of --add-scram. Raises ConfigError."""
    if not texts:
        return []
    if not config.embedded:
        raise ConfigError(
            "--add-scram works on a broker without ZooKeeper; use `ottla users add NAME`, before "
            "the first broker starts with `--config FILE` or `--zookeeper HOST:PORT`."
        )
    from ottla.broker.security.sasl.scram_admin import parse_scram_option

    return [parse_scram_option(text) for text in texts]


async def _serve(config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser]) -> int:
    from ottla.broker.observability.banner import announce
    from ottla.broker.server.process import BrokerProcess

    def announce_ready(server: BrokerServer) -> None:
        parts = server.parts
        not_ready = None if server.state is None else server.state.not_ready()
        announce(
            config, parts.broker_id, parts.cluster_id, server.ports, server.metrics_port, not_ready
        )

    return await BrokerProcess(config, lines, new_users).run(announce_ready, _report)


def _report(error: Exception, code: int) -> None:
    """Prints the sentence of an error of the start; others are in the log with a traceback."""
    from ottla.broker.server.process import is_expected

    del code
    if is_expected(error):
        print(f"ottla: {error}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
