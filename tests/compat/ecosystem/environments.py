"""Python programs in environments of their own, as a user installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.doubles.apache_kafka import REPOSITORY

INSTALL_SECONDS = 1800.0


def environment(name: str, *requirements: str) -> Path:
    """The interpreter of `.cache/NAME`, with these packages from PyPI, installed once."""
    place = REPOSITORY / ".cache" / name
    python = place / "bin" / "python"
    marker = place / "installed.txt"
    wanted = "\n".join(requirements)
    if marker.exists() and marker.read_text() == wanted:
        return python
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [str(python), "-m", "pip", "install", "-q", *requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode:
            pytest.skip(f"{', '.join(requirements)} could not be installed: {done.stderr[-300:]}")
    marker.write_text(wanted)
    return python


def run_script(
    python: Path,
    script: Path,
    *arguments: str,
    seconds: float = 300.0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Runs a file to its end and returns what it printed; AssertionError when it fails."""
    return run_command([str(python), str(script), *arguments], seconds, variables)


def run_command(
    command: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None
) -> str:
    """Runs a command to its end and returns what it printed; AssertionError when it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(variables or {})},
    )
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    assert done.returncode == 0, f"{last}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
