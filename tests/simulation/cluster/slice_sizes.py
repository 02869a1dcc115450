"""Small slices: work that is done in slices gives the loop back often, where the seed says so.

A simulated cluster is small: with the sizes of production almost all work fits one slice, and
what runs between two slices would never be played.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from random import Random

from ottla.protocol.steps import PACE

# Names of the constants that say how much a slice does, in steps or in seconds.
SLICE_SIZE = re.compile(r"_?([A-Z]+_)*(PER_(STEP|SLICE|TURN)|SLICE_SECONDS)")
# One in so many constants keeps its value.
KEPT_ONE_IN = 3
SMALL = (1, 1, 2, 5)
# So that a seed may pause after each step, or as production does.
STEPS_PER_READING = (1, 1, 2, PACE.steps_per_reading)
# A few readings of the clock. With less, a slice could end before it has done anything.
SMALL_SECONDS = 1e-5


def slice_sizes() -> dict[str, list[str]]:
    """The constants by name, each with the modules that have it (some import it)."""
    found: dict[str, list[str]] = {}
    for module_name in sorted(sys.modules):
        if module_name.startswith("ottla."):
            for name, value in vars(sys.modules[module_name]).items():
                if SLICE_SIZE.fullmatch(name) and isinstance(value, (int, float)):
                    found.setdefault(name, []).append(module_name)
    return found


def draw_slice_sizes(seed: int) -> dict[str, float]:
    """Changes the constants of this process for good. Returns the values that are not kept."""
    random = Random(f"slices {seed}")
    drawn: dict[str, float] = {}
    pace = Random(f"pace {seed}")
    PACE.steps_per_reading = pace.choice(STEPS_PER_READING)
    PACE.clock = _clock(pace)
    drawn["steps_per_reading"] = PACE.steps_per_reading
    for name, module_names in sorted(slice_sizes().items()):
        keeps, small = random.randrange(KEPT_ONE_IN) == 0, random.choice(SMALL)
        if keeps:
            continue
        drawn[name] = SMALL_SECONDS if name.endswith("SECONDS") else small
        for module_name in module_names:
            setattr(sys.modules[module_name], name, drawn[name])
    return drawn


def _clock(random: Random) -> Callable[[], float]:
    """Return a clock by which a turn ends at every third reading or so."""
    now = 0.0

    def read() -> float:
        nonlocal now
        now += random.choice((0.0, 0.0, PACE.turn_seconds))
        return now

    return read
