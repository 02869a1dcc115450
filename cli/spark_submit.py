"""How `ottla spark` starts a job: spark-submit with the connector's zip and Spark's settings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ottla.cli.output import Failure, usage
from ottla.cli.spark_package import NoConnectorError, write_package

ICEBERG, DELTA = "iceberg", "delta"
# Spark's minor version: the jars that were made for it, or run on it.
TABLE_PACKAGES = {
    DELTA: {
        "4.0": "io.delta:delta-spark_4.0_2.13:4.1.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.1.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    ICEBERG: {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    },
}
TABLE_SETTINGS = {
    DELTA: {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    ICEBERG: {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    },
}
SETTINGS = {
    # Conditions on partition, offset and timestamp limit what is read.
    "spark.sql.python.filterPushdown.enabled": "true",
}
RUNNER = """\
import sys

from pyspark_ottla.{module} import main

sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """How and where a job runs."""

    master: str = ""
    deploy_mode: str = ""
    tables: tuple[str, ...] = ()  # iceberg, delta
    packages: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def is_local(self) -> bool:
        return not self.master or self.master.startswith("local")


def find_spark_submit() -> tuple[Path, dict[str, str]]:
    """spark-submit, and the variables that it needs: of SPARK_HOME, of pyspark, or of the path."""
    home = os.environ.get("SPARK_HOME")
    if home:
        path = Path(home, "bin", "spark-submit")
        if not path.exists():
            raise Failure(f"there is no {path}: SPARK_HOME is not the folder of a Spark")
        return path, {}
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        if (folder / "bin" / "spark-submit").exists():
            return folder / "bin" / "spark-submit", {"SPARK_HOME": str(folder)}
    found = shutil.which("spark-submit")
    if found is None:
        raise Failure("there is no Spark here: install pyspark, or set SPARK_HOME to a Spark")
    return Path(found), {}


def spark_version(spark_submit: Path) -> str:
    """The minor version, such as 4.1, by the name of Spark's own jar; empty if it is not found."""
    for jar in spark_submit.parent.parent.glob("jars/spark-sql_*.jar"):
        return ".".join(jar.stem.rpartition("-")[2].split(".")[:2])
    return ""


def parse_settings(given: Sequence[str], option: str = "--conf") -> tuple[tuple[str, str], ...]:
    """The pairs of `name=value` texts."""
    pairs = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise usage(f"{option} {text!r} is not name=value")
        pairs.append((name.strip(), value))
    return tuple(pairs)


def table_packages(tables: Sequence[str], given: Sequence[str], version: str) -> list[str]:
    """The coordinates of the jars, unless the user has named some of the same project."""
    wanted = list(given)
    for table in tables:
        if any(table in package for package in given):
            continue
        known = TABLE_PACKAGES[table].get(version)
        if known is None:
            versions = ", ".join(TABLE_PACKAGES[table])
            raise usage(
                f"no jar of {table} is known for Spark {version or 'of this version'} (there are "
                f"some for {versions}): name it with --package group:artifact:version"
            )
        wanted.append(known)
    return wanted


def command_line(
    spark_submit: Path, submission: Submission, archive: Path, files: Sequence[Path]
) -> list[str]:
    """The command up to the program and its arguments. The user's settings come last and win."""
    command = [str(spark_submit)]
    if submission.master:
        command += ["--master", submission.master]
    if submission.deploy_mode:
        command += ["--deploy-mode", submission.deploy_mode]
    packages = table_packages(submission.tables, submission.packages, spark_version(spark_submit))
    if packages:
        command += ["--packages", ",".join(packages)]
    command += ["--py-files", ",".join([str(archive), *submission.py_files])]
    if submission.deploy_mode == "cluster":
        command += ["--files", ",".join(map(str, files))]
    settings = dict(SETTINGS)
    for table in submission.tables:
        settings |= TABLE_SETTINGS[table]
    for name, value in (settings | dict(submission.settings)).items():
        command += ["--conf", f"{name}={value}"]
    return command


def submit(
    submission: Submission, module: str, file: Path | None, content: str, arguments: Sequence[str]
) -> int:
    """Runs `main` of that module of the connector by spark-submit; returns its exit code.

    Its first argument is `file`, or a file with `content` that only this user can read.
    """
    spark_submit, variables = find_spark_submit()
    with tempfile.TemporaryDirectory(prefix="ottla-spark-") as folder:
        archive, program = Path(folder, "pyspark_ottla.zip"), Path(folder, "ottla_job.py")
        try:
            write_package(archive)
        except NoConnectorError as error:
            raise Failure(f"cannot write the connector's package: {error}") from None
        program.write_text(RUNNER.format(module=module), encoding="utf-8")
        if file is None:
            file = Path(folder, "options.json")
            file.touch(mode=0o600)
            file.write_text(content, encoding="utf-8")
        command = command_line(spark_submit, submission, archive, [file])
        command += [str(program), str(file), *arguments]
        environment = {**os.environ, **variables, **python_variables(submission, os.environ)}
        return run_until_end(command, environment)


def run_until_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program; returns its exit code, or that of a shell if a signal ends it.

    SIGTERM is passed to the program, and SIGINT is sent to it by the terminal, as is SIGHUP when
    that is closed, unless nohup has it ignored. This ends when the program does, which may finish
    its work before. A second SIGINT kills it.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        received.append(number)
        if process is not None:
            _pass_on(process, received)

    # Before the start: a signal that comes meanwhile is passed on after it.
    handled = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        handled.remove(signal.SIGHUP)
    before = {each: signal.signal(each, on_signal) for each in handled}
    try:
        process = subprocess.Popen(command, env=environment)
        _pass_on(process, received)
        code = process.wait()
        return 128 - code if code < 0 else code
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _pass_on(process: subprocess.Popen[bytes], received: list[int]) -> None:
    if received.count(signal.SIGINT) > 1:
        process.kill()
    elif signal.SIGTERM in received or signal.SIGHUP in received:
        process.terminate()


def python_variables(submission: Submission, environment: Mapping[str, str]) -> dict[str, str]:
    """This Python for the driver, and for executors on the same machine."""
    names = ["PYSPARK_DRIVER_PYTHON"] if submission.deploy_mode != "cluster" else []
    if submission.is_local:
        names.append("PYSPARK_PYTHON")
    return {name: sys.executable for name in names if not environment.get(name)}
