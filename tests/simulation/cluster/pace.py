"""The pace of a simulated cluster: the seed says where work that shares the loop pauses.

A simulated cluster is small, and computing takes no simulated time: with the pace of production
nearly all work would be done in its first turn, and what runs between two turns would never be
played.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ottla.broker.replication import fetcher
from ottla.broker.transactions import state
from ottla.protocol.steps import PACE
from ottla.storage.log import truncation

# So that a seed may pause after each step, or as production does.
STEPS_PER_READING = (1, 1, 2, PACE.steps_per_reading)
# Work that is divided for another reason than the loop, and after each part of which others run: an
# append of a follower is a write, a part of a truncation a recovery point.
PARTS = ((fetcher, "_BATCHES_PER_STEP"), (truncation, "SEGMENTS_PER_TURN"))
SMALL = (1, 1, 2, 5)
# Of transactional producers: with few of them they are exhausted again and again.
MAX_EPOCHS = (5, 12, state.MAX_EPOCH)
# One in so many keeps its value.
KEPT_ONE_IN = 3


def draw_pace(seed: int) -> dict[str, int]:
    """Change the pace of this process for good. Return the values by name."""
    random = Random(f"pace {seed}")
    PACE.steps_per_reading = random.choice(STEPS_PER_READING)
    PACE.clock = _clock(random)
    drawn = {"steps_per_reading": PACE.steps_per_reading}
    for module, name in PARTS:
        if random.randrange(KEPT_ONE_IN):
            setattr(module, name, random.choice(SMALL))
        drawn[name] = getattr(module, name)
    state.MAX_EPOCH = random.choice(MAX_EPOCHS)
    state.LAST_USABLE_EPOCH = state.MAX_EPOCH - 1
    drawn["MAX_EPOCH"] = state.MAX_EPOCH
    return drawn


def _clock(random: Random) -> Callable[[], float]:
    """Return a clock by which a turn ends at every third reading or so."""
    now = 0.0

    def read() -> float:
        nonlocal now
        now += random.choice((0.0, 0.0, PACE.turn_seconds))
        return now

    return read
