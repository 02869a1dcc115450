"""`make mutation`: the score of each module that decides, and the mutants that survive.

    python -m tests.mutation                                  all modules, minutes each
    python -m tests.mutation broker/replication/isr.py        one or several modules
    python -m tests.mutation MODULE --only Class.method       some mutants of it

Mutants that are judged to change nothing are listed in `judged.txt`, with the reason. The exit code
is 1 if another one survives, if a judged one does not survive any more, or if fewer than 85 % of
the mutants of a module are killed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation.modules import MODULES

if TYPE_CHECKING:
    from tests.mutation.runner import Verdict

ROOT = Path(__file__).resolve().parents[2]
JUDGED = Path(__file__).with_name("judged.txt")
LEAST_PERCENT = 85


def judged() -> dict[tuple[str, str], str]:
    """The reasons by module and mutant. A line of the file is a module, a mutant with `| ` before
    its reason, empty, or a comment."""
    found: dict[tuple[str, str], str] = {}
    module = ""
    for line in JUDGED.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            module = line.strip()
            continue
        mutant, separator, reason = line.strip().rpartition(" | ")
        if not separator or not reason:
            raise ValueError(f"{JUDGED}: no reason in {line!r}")
        found[module, mutant] = reason
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("modules", nargs="*", help="paths of modules; all without any")
    parser.add_argument("--only", default="", help="a part of the names of the mutants")
    arguments = parser.parse_args()
    unknown = [each for each in arguments.modules if each not in MODULES]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not in tests/mutation/modules.py")
    if len(arguments.modules) == 1:
        return _one(arguments.modules[0], arguments.only)
    codes = []
    for module in arguments.modules or MODULES:
        # Each in a process of its own, so that no module has the functions of another's run.
        command = [sys.executable, "-m", "tests.mutation", module, "--only", arguments.only]
        codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
    return max(codes)


def _one(module: str, only: str) -> int:
    from tests.mutation.runner import run

    began = time.monotonic()
    verdicts = run((ROOT / module).resolve(), MODULES[module], only)
    reasons = {mutant: why for (of, mutant), why in judged().items() if of == module}
    lines, is_good = report(verdicts, {each: why for each, why in reasons.items() if only in each})
    *details, score = lines
    for each in details:
        print(each)
    print(f"{module}: {score}, {time.monotonic() - began:.0f} s", flush=True)
    return 0 if is_good or (only and not details) else 1


def report(verdicts: Sequence[Verdict], reasons: Mapping[str, str]) -> tuple[list[str], bool]:
    """The lines to print, the score last, and whether all is as it should be."""
    from tests.mutation.runner import KILLED

    alive = [each for each in verdicts if each.outcome != KILLED]
    unjudged = [each for each in alive if each.mutant not in reasons]
    gone = sorted(set(reasons) - {each.mutant for each in alive})
    killed = len(verdicts) - len(alive)
    lines = [f"{each.outcome}: {each.mutant}" for each in unjudged]
    lines += [f"judged, but killed or gone: {each}" for each in gone]
    lines.append(
        f"{killed} of {len(verdicts)} mutants killed ({100 * killed / len(verdicts):.1f} %), "
        f"{len(alive) - len(unjudged)} judged, {len(unjudged)} not judged"
    )
    is_enough = 100 * killed >= LEAST_PERCENT * len(verdicts)
    return lines, is_enough and not unjudged and not gone


if __name__ == "__main__":
    sys.exit(main())
