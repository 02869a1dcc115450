"""A JVM that runs classes of Kafka's tests, and the results that it prints."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from tests.compat.kafka_tests.jars import class_path
from tests.compat.kafka_tests.results import Row, parse_row
from tests.doubles.apache_kafka import JVM_OPTIONS, REPOSITORY

# No logger has an appender. One test compares levels of loggers below `kafka`.
_LOG4J = "log4j.rootLogger=OFF\nlog4j.logger.kafka=WARN\n"


def run_in_jvm(selectors: Sequence[str], broker: str, silence_s: float) -> Iterator[Row]:
    """Runs classes, or single tests, on a broker; yields a row when a test or a class has ended.

    The JVM is killed, and its brokers with it, when no test has ended for `silence_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-tests-") as name:
        directory = Path(name)
        (directory / "tmp").mkdir()
        (directory / "log4j.properties").write_text(_LOG4J, "ascii")
        with (directory / "errors").open("wb") as errors:
            process = subprocess.Popen(
                _command(selectors, broker, directory),
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert process.stdout is not None
        try:
            for line in read_lines(process.stdout, silence_s):
                row = parse_row(line)
                if row is not None:
                    yield row
            if process.poll() not in (None, 0):
                print((directory / "errors").read_text("utf-8", "replace")[-2000:], file=sys.stderr)
                raise RuntimeError(f"the JVM of the tests ended with {process.returncode}")
        finally:
            process.kill()  # its brokers see the end of their input
            process.wait()
            process.stdout.close()


def read_lines(stream: IO[bytes], silence_s: float) -> Iterator[str]:
    """The lines of a stream until its end, or until it is silent for too long."""
    rest = b""
    while True:
        if not select.select([stream], [], [], silence_s)[0]:
            print(f"no test has ended for {silence_s:.0f} s: the JVM is killed", file=sys.stderr)
            return
        chunk = os.read(stream.fileno(), 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)


def _command(selectors: Sequence[str], broker: str, directory: Path) -> list[str]:
    return [
        "java",
        *JVM_OPTIONS,
        # The jars are known: half of the time that a JVM needs to start.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
        f"-Dottla.directory={directory / 'brokers'}",
        f"-Dottla.python={sys.executable}",
        f"-Dottla.repository={REPOSITORY}",
        # The key distribution center of the SASL tests refreshes Java's configuration by it.
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-cp",
        class_path(with_shim=broker == "ottla"),
        "ottla.runner.Runner",
        *selectors,
    ]
