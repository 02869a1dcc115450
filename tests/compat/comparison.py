"""What the commands share that run a program or a suite on Ottla and on Apache Kafka."""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ottla
from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.doubles.apache_kafka import KAFKA_VERSION

#: The version of each kind of broker.
VERSIONS = {OTTLA: ottla.__version__, KAFKA: KAFKA_VERSION}


def command_line(document: str, names: Sequence[str], noun: str) -> argparse.ArgumentParser:
    """The options of both: which of these names, on which broker, where files stay."""
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--only", action="append", choices=names, help=f"a {noun}; all without")
    parser.add_argument("--broker", action="append", choices=(OTTLA, KAFKA), help="one of the two")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--keep", type=Path, help="a directory for data and logs, kept")
    return parser


def chosen_brokers(arguments: argparse.Namespace) -> Sequence[str]:
    """The kinds of brokers, Ottla first."""
    return arguments.broker or (OTTLA, KAFKA)


def end_with_sigterm() -> None:
    """SIGTERM ends the brokers and programs, too: it is an exception from now on."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def run_directory(name: str, kind: str, keep: Path | None) -> Iterator[Path]:
    """A directory for one run, which stays below `keep` or is removed in the end."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-{kind}-", dir=keep))
    directory.chmod(0o755)  # a program may run as another user
    try:
        yield directory
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def today() -> str:
    """The day of a run, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
