"""What the person sees who starts a broker; test_mistakes.py has what goes wrong most often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.doubles.broker_process import ROOT, start_broker

SECONDS = 30


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    harmless = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "OTTLA_"))}
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "start", *arguments],
        cwd=directory,
        env={**harmless, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def overrides(directory: Path, port: int = 0) -> list[str]:
    return [
        f"--override=log.dirs={directory / 'data'}",
        f"--override=listeners=PLAINTEXT://127.0.0.1:{port}",
    ]


def test_the_banner_says_where_and_for_whom(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        log = broker.log()
    assert f"PLAINTEXT://127.0.0.1:{broker.port}  reachable from this machine only" in log
    assert str(broker.data_directory) in log
    assert "this broker is alone" in log


def test_an_ill_typed_variable_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, *overrides(tmp_path), OTTLA_NUM_PARTITIONS="many")
    assert result.returncode == 2
    assert "environment variable OTTLA_NUM_PARTITIONS" in result.stderr
    assert "num.partitions" in result.stderr


def test_settings_come_from_file_environment_and_override(tmp_path: Path) -> None:
    """The later source wins: a failing value in an earlier one is never read."""
    settings = tmp_path / "server.properties"
    settings.write_text("broker.id=5\nnum.partitions=2\nlisteners=PLAINTEXT://127.0.0.1:1\n")
    result = run(
        tmp_path,
        str(settings),
        "--override=listeners=nonsense",
        KAFKA_LISTENERS="PLAINTEXT://127.0.0.1:0",
    )
    assert result.returncode == 2
    assert "'nonsense' is not NAME://host:port" in result.stderr
