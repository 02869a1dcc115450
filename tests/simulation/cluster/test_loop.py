"""The simulated loop: what belongs to a process stays with it, whatever is done to the process."""

import asyncio

import pytest

from tests.simulation.cluster.loop import (
    LAST_SECOND,
    Process,
    SimulatedLoop,
    current_process,
)


def test_a_callback_that_a_pause_held_is_still_one_of_its_process() -> None:
    """Else what it starts survives the process."""
    loop = SimulatedLoop(1)
    process = Process("b1")
    seen: list[Process | None] = []

    async def play() -> None:
        process.context.run(loop.call_soon, lambda: seen.append(current_process()))
        process.pause()
        await asyncio.sleep(1)
        assert not seen
        process.resume()
        await asyncio.sleep(1)

    loop.run_until_complete(play())
    loop.close()
    assert seen == [process]


def test_a_simulation_has_to_end() -> None:
    """A seed that waits for ever would keep a processor from all others."""
    loop = SimulatedLoop(1)

    def again() -> None:
        loop.call_later(1, again)

    again()
    with pytest.raises(RuntimeError, match="the simulation does not end"):
        loop.run_forever()
    assert loop.now < LAST_SECOND + 2
    loop.close()
