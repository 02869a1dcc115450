"""Where tests that draw at random get their seeds from.

The same ones in every run, so that a run says something about the change it was made for.
`OTTLA_EXPLORE=1` draws new ones, and ten times as many; `OTTLA_TEST_SEED=<seed>` repeats one. A
failing test prints its seed. A seed that has found something is worth keeping: `known`.
"""

from __future__ import annotations

import os
from random import Random


def seeds(count: int, *known: int) -> list[int]:
    """`known`, and `count` more."""
    given = os.environ.get("OTTLA_TEST_SEED")
    if given is not None:
        return [int(given)]
    if os.environ.get("OTTLA_EXPLORE"):
        return [Random().getrandbits(32) for _ in range(10 * count)]
    repeatable = Random(count)
    return [*known, *(repeatable.getrandbits(32) for _ in range(count))]
