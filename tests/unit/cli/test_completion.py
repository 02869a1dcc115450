"""What the shell is offered after TAB, without importing what is not needed for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.doubles.broker_process import ROOT


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ottla gro", ["groups"]),
        ("ottla topics cr", ["create"]),
        ("ottla topics create --par", ["--partitions"]),
    ],
)
def test_bash(typed: str, offered: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main"],
        cwd=ROOT,
        env={**os.environ, **words, "_OTTLA_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == offered
