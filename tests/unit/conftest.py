"""In unit tests no turn ends by the clock: what a test sees depends on no machine's speed.

A test of what happens in a pause says where work pauses (`tests.doubles.pace.steps_per_turn`).
"""

from collections.abc import Iterator

import pytest

from tests.doubles.pace import endless_turns


@pytest.fixture(autouse=True)
def turns_do_not_end_by_the_clock() -> Iterator[None]:
    """The pace of every unit test."""
    with endless_turns():
        yield
