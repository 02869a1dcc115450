"""The test of the test: `python -m tests.simulation.cluster.defects [NAME ...] [--seeds N]`.

Puts each defect back into a copy of the tree, plays seeds until one complains, and prints a row of
a table; several at a time (`--jobs N`, all processors without it).
Exits with 1 when a defect does not apply or is not found within N seeds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tests.simulation.cluster.defects.defect import Defect, apply, check, read

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NOT_COPIED = (
    ".git",
    ".venv",
    ".cache",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "__pycache__",
)
SEEDS = 30


class Found(NamedTuple):
    """A row of the table."""

    defect: str
    seeds: int  # needed; 0: not found
    complaint: str


def play(tree: Path, seed: int, arguments: str) -> subprocess.CompletedProcess[str]:
    """One seed on a tree."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.cluster", str(seed), "--no-shrink"]
        + arguments.split(),
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@lru_cache(maxsize=1024)
def fails_anyway(seed: int, arguments: str) -> bool:
    """Whether a seed fails without a defect, and so proves nothing. Defects share arguments."""
    return play(ROOT, seed, arguments).returncode != 0


def look_for(defect: Defect, seeds: int) -> Found:
    """Plays seeds with the defect until one complains."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        apply(defect, tree)
        for seed in range(1, seeds + 1):
            played = play(tree, seed, defect.arguments)
            if played.returncode and not fails_anyway(seed, defect.arguments):
                lines = (played.stdout + played.stderr).splitlines()
                return Found(defect.name, seed, lines[1] if len(lines) > 1 else "".join(lines))
    return Found(defect.name, 0, "not found")


def main() -> None:
    """See the head of the module."""
    parser = argparse.ArgumentParser(description="Puts known defects back, one at a time.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    defects = [read(path) for path in sorted(HERE.glob("*.txt"))]
    if arguments.names:
        defects = [each for each in defects if each.name in arguments.names]
    for each in defects:  # all of them first: a run takes half an hour
        check(each, ROOT)
    missed = 0
    print("| Defect | Seeds | What complains |\n|---|---|---|", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as jobs:
        searches = {jobs.submit(look_for, each, arguments.seeds): each for each in defects}
        for search in as_completed(searches):
            found, what = search.result(), searches[search].what
            missed += found.seeds == 0
            print(f"| {what} | {found.seeds or '-'} | {found.complaint[:160]} |", flush=True)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
