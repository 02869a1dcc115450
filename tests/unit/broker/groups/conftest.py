"""Turns of few steps, for the tests of what happens in the pauses."""

from collections.abc import Iterator

import pytest

from tests.doubles.pace import steps_per_turn

STEPS_PER_TURN = 10


@pytest.fixture
def short_turns() -> Iterator[None]:
    with steps_per_turn(STEPS_PER_TURN):
        yield
