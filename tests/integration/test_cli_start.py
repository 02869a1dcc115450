"""`ottla start` that cannot start: what the user reads, beside what test_start checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(directory: Path, *overrides: str) -> tuple[int, str]:
    """Exit code and last line of a start that must fail."""
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={directory / 'data'}", *overrides]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ottla.cli.main",
            "start",
            *(f"--override={text}" for text in settings),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("KAFKA_", "OTTLA_"))
        },
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


def test_zookeeper_away(tmp_path: Path) -> None:
    code, line = start(
        tmp_path, "zookeeper.connect=127.0.0.1:1", "zookeeper.connection.timeout.ms=500"
    )
    assert (code, line) == (
        16,
        "ottla: No connection to ZooKeeper at 127.0.0.1:1 within 500 ms; is it running, and is "
        "zookeeper.connect right? A broker that is alone needs no ZooKeeper: remove "
        "zookeeper.connect.",
    )


def test_advertising_what_no_client_can_connect_to(tmp_path: Path) -> None:
    code, line = start(tmp_path, "advertised.listeners=PLAINTEXT://0.0.0.0:9092")
    assert code == 18
    assert line.startswith(
        "ottla: --override: advertised.listeners cannot use 0.0.0.0, which no client can connect to"
    )


def test_data_of_another_broker(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=0\nbroker.id=5\n")
    code, line = start(tmp_path, "broker.id=6")
    assert code == 2
    assert "5" in line
    assert "6" in line


def test_a_port_that_is_no_port_and_an_unknown_option(tmp_path: Path) -> None:
    code, line = start(tmp_path, "listeners=PLAINTEXT://127.0.0.1:99999")
    assert (code, line.startswith("ottla: ")) == (2, True)
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "start", "--port", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "ottla: unknown option --port; see `ottla start --help`.\n",
    )
