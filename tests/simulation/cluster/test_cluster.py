"""Real brokers under a seeded world keep what they promise; a seed replays bit for bit.

`make simulate SEED=n ARGUMENTS="..."` plays one again, with the arguments that a failure prints.
"""

import os
import random
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

SECONDS = 300
NEW_SEEDS = 20


class Case(NamedTuple):
    """One call of the command line."""

    seed: int
    arguments: str = ""

    def __str__(self) -> str:
        return f"{self.seed} {self.arguments}".strip()


FIXED = [
    Case(1),
    Case(2),
    Case(3, "--power-loss"),
    Case(4, "--power-loss"),
    Case(5, "--brokers 1"),
    Case(6, "--brokers 1 --power-loss"),
    Case(7, "--brokers 5"),
    Case(8, "--brokers 5 --power-loss"),
    Case(9, "--internal-partitions 3 --producers 8"),
]
REPLAYED = [Case(21, "--troubles 6"), Case(22, "--troubles 6 --power-loss")]


def simulate(case: Case) -> str:
    """What the simulation prints. Fails with its trace, and with the command that replays it."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.simulation.cluster", str(case.seed), *case.arguments.split()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert found.returncode == 0, (
        f"make simulate SEED={case.seed} ARGUMENTS='{case.arguments}'\n{found.stdout}{found.stderr}"
    )
    print(found.stdout)
    return found.stdout


def history(output: str) -> str:
    found = re.search(r"history (\w+)", output)
    assert found is not None, output
    return found[1]


def new_cases() -> list[Case]:
    """As with property tests, each run has the same examples unless OTTLA_EXPLORE is set."""
    if not os.environ.get("OTTLA_EXPLORE"):
        return []
    seeds = random.SystemRandom().sample(range(100, 1_000_000), NEW_SEEDS)
    return [Case(seed, "--power-loss" if number % 2 else "") for number, seed in enumerate(seeds)]


@pytest.mark.parametrize("case", FIXED + new_cases(), ids=str)
def test_a_seed(case: Case) -> None:
    simulate(case)


@pytest.mark.parametrize("case", REPLAYED, ids=str)
def test_two_processes_with_one_seed_come_to_the_same_history(case: Case) -> None:
    assert history(simulate(case)) == history(simulate(case))
