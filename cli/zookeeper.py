"""`ottla zookeeper`: a ZooKeeper server without Java, for development and tests.

It does not import Typer: `ottla cluster start` and tests start it often.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ottla.broker.config.errors import ConfigError
from ottla.broker.runtime.signals import stop_signals
from ottla.cli.zookeeper_properties import check_no_other_data, read_settings
from ottla.controller.tree.store import StoreError
from ottla.controller.zookeeper_server.server import DEFAULT_TICK_TIME_MS, ZooKeeperServer

DEFAULT_PORT = 2181
# The znode file of a broker that runs without ZooKeeper, so that its cluster can grow.
FILE_NAME = "ottla-znodes.db"

DESCRIPTION = """\
Start a ZooKeeper server on this machine, without Java: one process, not highly
available, for development and tests. Production clusters use an ensemble of
Apache ZooKeeper.

Examples:
  ottla zookeeper                             on 127.0.0.1:2181
  ottla zookeeper --port 0 --in-memory        a free port; nothing is kept
  ottla zookeeper zookeeper.properties        a file of ZooKeeper's own script
  ottla start --override zookeeper.connect=127.0.0.1:2181

Sessions, ephemeral znodes, watches, multi, ACLs (world, auth, digest, ip) and
four-letter words are ZooKeeper's. Containers, znodes with a time to live, SASL
and TLS are not supported.

The data directory (./ottla-zookeeper) can be that of a broker which ran without
ZooKeeper: stop the broker, start this server with the broker's log.dirs, then
start the broker with zookeeper.connect.

Of a file, dataDir, clientPort, clientPortAddress and tickTime are used; options
go before them. Without clientPortAddress only this machine reaches the server.
"""


def main(arguments: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit code."""
    options = _options(list(arguments))
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        asyncio.run(_serve(options))
    except ConfigError as error:
        print(f"ottla: {error}", file=sys.stderr)
        return 1
    except (OSError, StoreError, UnicodeError) as error:  # the last for what cannot be a name
        print(f"ottla: {_explained(error, options)}", file=sys.stderr)
        return 1
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Those of the command line, then those of the file. Ends with exit code 2 for wrong ones."""
    parser = _parser()
    path = parser.parse_args(arguments).file
    if path is None:
        return parser.parse_args(arguments)
    try:
        settings = read_settings(path)
    except ConfigError as error:
        parser.exit(2, f"ottla: {error}\n")
    if settings.ignored:
        print(f"ottla: {path}: no effect here: {', '.join(settings.ignored)}", file=sys.stderr)
    # argparse reads the text of a default as that of the option.
    parser.set_defaults(**settings.options)
    return parser.parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ottla zookeeper",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", help="zookeeper.properties", metavar="FILE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="client port (2181)")
    parser.add_argument("--data-dir", default="ottla-zookeeper", help="data directory")
    parser.add_argument("--in-memory", action="store_true", help="keep nothing on disk")
    parser.add_argument(
        "--tick-time-ms",
        type=_tick_time_ms,
        default=DEFAULT_TICK_TIME_MS,
        help="session timeouts are limited to 2 to 20 ticks (2000)",
    )
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="changes survive the end of the process, but not a power failure",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log sessions")
    return parser


def _port(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return value


def _tick_time_ms(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 10:
        raise argparse.ArgumentTypeError("a tick is a number of milliseconds, at least 10")
    return value


def _explained(error: OSError | StoreError | UnicodeError, options: argparse.Namespace) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"--host {options.host} does not resolve here; choose another."
    if isinstance(error, OSError):
        return (
            f"port {options.port} of {options.host} cannot be used "
            f"({os.strerror(error.errno or 0)}); choose another with --port."
        )
    return str(error)


def _prepare_directory(options: argparse.Namespace) -> str | None:
    if options.in_memory:
        return None
    directory = Path(options.data_dir)
    check_no_other_data(str(directory), FILE_NAME)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    except OSError as error:
        raise StoreError(
            str(directory),
            f"{directory} cannot be created ({os.strerror(error.errno or 0)}); "
            "choose another with --data-dir.",
        ) from None
    return str(directory / FILE_NAME)


async def _serve(options: argparse.Namespace) -> None:
    server = ZooKeeperServer(
        _prepare_directory(options),
        tick_time_ms=options.tick_time_ms,
        synchronous="NORMAL" if options.no_fsync else "FULL",
    )
    await server.start(options.host, options.port)
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()
    for number in stop_signals():
        loop.add_signal_handler(number, _set, stopped)
    print(
        f"ZooKeeper for development on {options.host}:{server.port} (not highly available)",
        flush=True,
    )
    try:
        assert server.failure is not None
        done, _ = await asyncio.wait({stopped, server.failure}, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        await server.stop()


def _set(stopped: asyncio.Future[None]) -> None:
    if not stopped.done():
        stopped.set_result(None)
