"""The command line of spark-submit, where it is found, and how a job ends."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ottla.cli import spark_submit
from ottla.cli.output import Failure
from ottla.cli.spark_submit import Submission
from tests.doubles.eventually import eventually


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bin/spark-submit", "jars/spark-sql_2.13-4.1.1.jar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


def test_the_users_settings_come_last(spark_home: Path) -> None:
    submission = Submission(
        master="yarn",
        deploy_mode="cluster",
        tables=("iceberg",),
        packages=("a:b:1",),
        py_files=("clean.py",),
        settings=(("spark.sql.extensions", "mine"), ("x", "y=z")),
    )
    program, _ = spark_submit.find_spark_submit()
    command = spark_submit.command_line(program, submission, Path("c.zip"), [Path("job.py")])
    assert command == [
        f"{spark_home}/bin/spark-submit",
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "--packages",
        "a:b:1,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
        "--py-files",
        "c.zip,clean.py",
        "--files",
        "job.py",
        "--conf",
        "spark.sql.python.filterPushdown.enabled=true",
        "--conf",
        "spark.sql.extensions=mine",
        "--conf",
        "x=y=z",
    ]


def test_jars_that_the_user_names_are_not_named_twice() -> None:
    own = ["io.delta:delta-spark_2.13:9.9"]
    assert spark_submit.table_packages(["delta"], own, "9.9") == own
    with pytest.raises(Failure, match=r"no jar of delta is known for Spark 9\.9 .*--package"):
        spark_submit.table_packages(["delta"], [], "9.9")


def test_a_spark_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(Failure, match="SPARK_HOME is not the folder of a Spark"):
        spark_submit.find_spark_submit()
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(spark_submit, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="install pyspark, or set SPARK_HOME"):
        spark_submit.find_spark_submit()


def test_the_version_by_the_name_of_a_jar(spark_home: Path) -> None:
    assert spark_submit.spark_version(spark_home / "bin" / "spark-submit") == "4.1"
    assert spark_submit.spark_version(Path("/none/bin/spark-submit")) == ""


def test_settings_are_pairs() -> None:
    assert spark_submit.parse_settings(["a=b=c", "d="]) == (("a", "b=c"), ("d", ""))
    with pytest.raises(Failure, match="--option 'a' is not name=value"):
        spark_submit.parse_settings(["a"], "--option")


@pytest.mark.parametrize(
    ("submission", "expected"),
    [
        (Submission(), {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"}),
        (Submission(master="local[2]"), {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"}),
        (Submission(master="yarn"), {"PYSPARK_DRIVER_PYTHON"}),
        (Submission(master="yarn", deploy_mode="cluster"), set()),
    ],
)
def test_whose_python_runs_where(submission: Submission, expected: set[str]) -> None:
    assert set(spark_submit.python_variables(submission, {})) == expected
    own = dict.fromkeys(("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"), "python3")
    assert spark_submit.python_variables(submission, own) == {}


# Ends with 7 when it is asked to end; it had the options file before.
_SUBMIT = """#!/bin/sh
sleep 60 &
trap 'kill $!; exit 7' TERM INT HUP
for last; do :; done
cat "$last" > "$SEEN"
wait
"""
_PROGRAM = """
from ottla.cli.spark_submit import Submission, submit
submission = Submission("local[1]", "client", (), (), (), ())
raise SystemExit(submit(submission, "land.job", None, "secret options", ()))
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_job_and_no_file_stays(
    spark_home: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    program = spark_home / "bin/spark-submit"
    program.write_text(_SUBMIT)
    program.chmod(0o755)
    seen, temporary = tmp_path / "seen", tmp_path / "temporary"
    temporary.mkdir()
    # With `nohup make test` it is ignored, also by what is started.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "SEEN": str(seen), "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    signal.signal(signal.SIGHUP, before)
    try:
        eventually(lambda: seen.exists() and seen.read_text() == "secret options")
        assert list(temporary.iterdir()) != []
        # A terminal sends signals to all processes of the job, a supervisor SIGTERM to the first.
        if sent is signal.SIGTERM:
            process.send_signal(sent)
        else:
            os.killpg(process.pid, sent)
        assert process.wait(30) == 7
    finally:
        process.kill()
        process.wait()
    assert list(temporary.iterdir()) == []


_IGNORING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[1], "w") as seen:
    seen.write(str(os.getpid()))
time.sleep(60)
"""
_RUN = """
import os, sys
from ottla.cli.spark_submit import run_until_end
raise SystemExit(run_until_end([sys.executable, "-c", *sys.argv[1:]], os.environ))
"""


def test_a_second_interrupt_kills_a_job_that_ignores_the_first(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    process = subprocess.Popen([sys.executable, "-c", _RUN, _IGNORING, str(seen)])
    try:
        eventually(lambda: seen.exists() and seen.read_text())
        job = psutil.Process(int(seen.read_text()))

        def is_killed() -> bool:
            """An interrupt after that may end the parent itself, which is about to exit."""
            with suppress(psutil.NoSuchProcess):
                if job.status() != psutil.STATUS_ZOMBIE:
                    process.send_signal(signal.SIGINT)
                    return False
            return True

        eventually(is_killed, pause_seconds=0.5)
        assert process.wait(30) == 137
    finally:
        process.kill()


def test_a_job_that_a_signal_ends_has_the_exit_code_of_a_shell() -> None:
    assert spark_submit.run_until_end(["sh", "-c", "kill -9 $$"], os.environ) == 137
    assert spark_submit.run_until_end(["sh", "-c", "exit 3"], os.environ) == 3
