"""What the shell is offered after TAB, without importing what is not needed for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla.testing import Broker
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
    assert complete("bash", typed) == offered


def complete(shell: str, typed: str, bootstrap: str = "127.0.0.1:1") -> list[str]:
    """What Typer's script of a shell gets for a line."""
    words = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {"_OTTLA_COMPLETE": f"complete_{shell}", "OTTLA_BOOTSTRAP": bootstrap}
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main"],
        cwd=ROOT,
        env={**os.environ, **words, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return [word for word in done.stdout.replace('"', " ").split() if word.isalnum() or "-" in word]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        started.create_topic("orders")
        started.create_topic("other-orders")
        commit = ["consume", "orders", "--group", "billing", "-b", started.bootstrap]
        subprocess.run([sys.executable, "-m", "ottla.cli.main", *commit], cwd=ROOT, check=True)
        yield started


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ottla topics describe or", "orders"),
        ("ottla consume ot", "other-orders"),
        ("ottla groups describe bi", "billing"),
        ("ottla configs describe topic or", "orders"),
        ("ottla configs describe broker 1", "1001"),
        ("ottla log-dirs --broker 1", "1001"),
    ],
)
def test_names_of_the_cluster(broker: Broker, shell: str, typed: str, offered: str) -> None:
    assert offered in complete(shell, typed, broker.bootstrap)


def test_a_cluster_that_is_away_completes_nothing() -> None:
    assert complete("bash", "ottla topics describe or") == []
