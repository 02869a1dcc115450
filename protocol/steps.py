"""Long computations as generators, which yield between steps of about 0.1 ms.

Who runs one decides whether other work runs between the steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def run_at_once(steps: Steps[T]) -> T:
    """The result of `steps`, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
