"""`ottla start`: reads the settings, runs a broker until it is stopped, logs what happens."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.exit_codes import exit_code
from ottla.broker.config.sources import IGNORE_VARIABLE
from ottla.broker.observability.log_stream import reopen_without_waiting
from ottla.broker.observability.logs import LineFormatter, configure_logging
from ottla.broker.runtime.event_loop import new_event_loop
from ottla.broker.runtime.signals import STOP_SIGNALS, stop_signals
from ottla.broker.runtime.tasks import abandoned_threads

if TYPE_CHECKING:
    from ottla.broker.security.sasl.scram_admin import NewUser

logger = logging.getLogger("ottla.broker")

USAGE = """\
Usage: ottla start [server.properties] [--override key=value]... [--ignore-unknown PREFIX]...
                   [--add-scram USER]...

Starts a broker. Without a settings file it listens on 127.0.0.1:9092 and keeps its data in
./ottla-data. Settings are Kafka's; they come from the file, from KAFKA_... and OTTLA_...
environment variables (KAFKA_LOG_DIRS is log.dirs) and from --override; the later one wins.

--ignore-unknown confluent. ignores the unknown settings that begin with confluent. in each of
them. Other unknown settings stop the start, except for KAFKA_... variables, which are logged.
OTTLA_IGNORE_UNKNOWN has such prefixes, too, with commas.

--add-scram 'SCRAM-SHA-512=[name=admin,password-file=FILE]' (or password=...) sets the password of a
user before the broker serves clients, as kafka-storage does; without ZooKeeper only.

Examples:
  ottla start
  ottla start server.properties
  ottla start --override listeners=PLAINTEXT://:9092 --override log.dirs=/var/lib/ottla
  KAFKA_LISTENERS=PLAINTEXT://:9092 ottla start
"""

# The options that have a value, and what it is.
_OPTIONS = {
    "--override": "key=value",
    "--add-scram": "SCRAM-SHA-512=[name=...,password=...]",
    "--ignore-unknown": "a prefix such as confluent.",
}

# How long a worker thread that computes keeps the interpreter when the loop wants it back. By
# default it is 5 ms, and the loop would wait so long after every system call it makes.
_SWITCH_SECONDS = 0.0005

# A collection of young objects follows so many new ones. With 700, Python's own threshold, the
# requests in progress are read again and again, and they are no garbage.
_YOUNG_OBJECTS = 10_000

# Errors of a start that are the business of the person who started it: a sentence, no traceback.
_EXPECTED = (
    "ConfigError",
    "StartError",
    "ListenError",
    "DirectoryInUse",
    "InconsistentMetadata",
    "InconsistentClusterId",
    "BrokerIdTaken",
    "AdvertisedAddressTaken",
    "StoreError",
    "MalformedZnode",
    "LogDirectoryOffline",
    "CorruptFile",
)

# What a start put off is done this long after it, when the first clients have had their responses.
_CALM_SECONDS = 2.0


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
        lines = configure_logging(config)
    except ConfigError as error:
        print(f"ottla: {error}", file=sys.stderr)
        return exit_code(error)
    gc.disable()  # until the broker has started: there is no garbage, and looking takes time
    for warning in config.warnings:
        logger.warning("%s", warning)
    _allow_many_files()
    return _run(config, lines, new_users)


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
    return Arguments(path, given["--override"], given["--add-scram"], given["--ignore-unknown"])


def _new_users(config: BrokerConfig, texts: Sequence[str]) -> list[NewUser]:
    """The users of --add-scram. Raises ConfigError."""
    if not texts:
        return []
    if not config.embedded:
        raise ConfigError(
            "--add-scram works on a broker without ZooKeeper; use `ottla users add`, or "
            "kafka-configs --zookeeper before the first broker starts."
        )
    from ottla.broker.security.sasl.scram_admin import parse_scram_option

    return [parse_scram_option(text) for text in texts]


def _allow_many_files() -> None:
    """Segments and connections take descriptors: as many as the system lets us have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:
        logger.warning(
            "cannot raise the limit of open files above %d: %s; raise it with ulimit -n, or with "
            "LimitNOFILE= of the systemd unit",
            soft,
            error,
        )


def _run(config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser]) -> int:
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(_serve(config, lines, new_users))
    abandoned = abandoned_threads()
    if abandoned:
        # The data is closed. The interpreter would wait for these threads as long as they hang.
        logger.warning("ending although %d threads still wait: %s", len(abandoned), abandoned[0])
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def dump_stacks_on_quit() -> None:
    """Write the stacks of all threads to standard error on SIGQUIT, as a JVM does, and go on.

    In the signal handler, so that it shows a loop that hangs, too; it does not wait for a reader.
    """
    import faulthandler

    try:
        opened = reopen_without_waiting(sys.stderr.fileno())
    except (OSError, ValueError):  # there is no standard error
        return
    faulthandler.register(signal.SIGQUIT, sys.stderr if opened is None else opened)


async def _serve(config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser]) -> int:
    from ottla.broker.observability.banner import announce
    from ottla.broker.server.broker_server import (
        BrokerServer,  # not for --help, nor for a setting that is wrong
    )

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    reason: list[str] = []

    this_task = asyncio.current_task()
    assert this_task is not None

    def stop(name: str) -> None:
        reason.append(name)
        stopping.set()
        if len(reason) == 1:
            server.cancel_start(this_task)

    for number in stop_signals():
        loop.add_signal_handler(number, stop, number.name)
    dump_stacks_on_quit()
    server = BrokerServer(
        config, lambda: stop("the failure of all log directories"), new_users=new_users
    )
    try:
        await server.start()
    except asyncio.CancelledError:
        logger.info("stopped because of %s, before the start was complete", reason[0])
        return 0
    except Exception as error:
        if not any(cls.__name__ in _EXPECTED for cls in type(error).__mro__):
            logger.exception("the broker cannot start")
        else:
            print(f"ottla: {error}", file=sys.stderr)
        return exit_code(error)
    # What is there now stays: full collections need not look at it again.
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()
    parts = server.parts
    announce(config, parts.broker_id, parts.cluster_id, server.ports, server.metrics_port)
    loading = threading.Thread(target=lines.prepare, name="log-lines", daemon=True)
    loop.call_later(_CALM_SECONDS, loading.start)
    await stopping.wait()
    logger.info("stopping because of %s", reason[0])
    await server.stop()
    if reason[0] not in {number.name for number in STOP_SIGNALS}:
        return 1
    logger.info("stopped cleanly; the next start has nothing to recover")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
