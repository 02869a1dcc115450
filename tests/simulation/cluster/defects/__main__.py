"""The test of the test: `python -m tests.simulation.cluster.defects [NAME ...] [--seeds N]`.

Puts each defect back into a copy of the tree, plays seeds until one complains, and prints a row of
a table; several at a time (`--jobs N`, all processors without it).
Exits with 1 when a patch does not apply or its defect is not found within N seeds.
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
APPLY = ("git", "apply", "--recount", "-C1")


class Found(NamedTuple):
    """A row of the table."""

    defect: str
    seeds: int  # needed; 0: not found
    complaint: str


def header(patch: Path, name: str) -> str:
    """The rest of the line of a patch's head that starts with `name`."""
    for line in patch.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    return ""


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
    """Whether a seed fails without a defect, and so proves nothing. Patches share arguments."""
    return play(ROOT, seed, arguments).returncode != 0


def look_for(patch: Path, seeds: int) -> Found:
    """Plays seeds with the defect until one complains."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        applied = subprocess.run(
            [*APPLY, str(patch)],
            cwd=tree,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            return Found(patch.stem, 0, f"the patch does not apply: {applied.stderr.strip()}")
        for seed in range(1, seeds + 1):
            played = play(tree, seed, header(patch, "Arguments"))
            if played.returncode and not fails_anyway(seed, header(patch, "Arguments")):
                lines = (played.stdout + played.stderr).splitlines()
                return Found(patch.stem, seed, lines[1] if len(lines) > 1 else "".join(lines))
    return Found(patch.stem, 0, "not found")


def main() -> None:
    """See the head of the module."""
    parser = argparse.ArgumentParser(description="Puts known defects back, one at a time.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    patches = sorted(HERE.glob("*.patch"))
    if arguments.names:
        patches = [each for each in patches if each.stem in arguments.names]
    missed = 0
    print("| Defect | Seeds | What complains |\n|---|---|---|", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as jobs:
        searches = {jobs.submit(look_for, each, arguments.seeds): each for each in patches}
        for search in as_completed(searches):
            found = search.result()
            missed += found.seeds == 0
            what = header(searches[search], "Defect")
            print(f"| {what} | {found.seeds or '-'} | {found.complaint[:160]} |", flush=True)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
