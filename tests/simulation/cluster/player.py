"""Plays simulations, each in a process of its own: what one leaves behind changes no other."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import resource
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TextIO

from tests.simulation.cluster.loop import FIRST_SECOND
from tests.simulation.cluster.world import Shape, World


@dataclass
class Outcome:
    """What a simulation came to."""

    seed: int
    complaints: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    #: Equal for equal histories: of the trace, and of every callback that ran.
    digest: str = ""
    virtual_seconds: float = 0.0
    processor_seconds: float = 0.0
    acknowledged: dict[str, int] = field(default_factory=dict)
    troubles: int = 0
    requests: int = 0
    longest_turn: str = ""

    @property
    def summary(self) -> str:
        """One line."""
        done = " ".join(f"{kind} {count}" for kind, count in self.acknowledged.items())
        rate = self.virtual_seconds / max(0.001, self.processor_seconds)
        return (
            f"seed {self.seed}: {len(self.complaints)} complaints, {done}; "
            f"{self.troubles} troubles, {self.requests} requests; "
            f"{self.virtual_seconds:.0f} virtual seconds in {self.processor_seconds:.1f} s "
            f"({rate:.0f} a second), longest turn {self.longest_turn}, history {self.digest}"
        )


def play(seed: int, shape: Shape, *, verbose: bool = False, steps: str = "") -> Outcome:
    """Plays one simulation in a child process. `steps`: a file for every callback and reading."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            try:
                json.dump(asdict(_play_here(seed, shape, verbose=verbose, steps=steps)), pipe)
            except BaseException:
                text = traceback.format_exc()
                reason = f"the simulation broke: {text.splitlines()[-1]}"
                json.dump(asdict(Outcome(seed, [reason], [text])), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return Outcome(seed, ["the process that simulated ended without a word"])
    return Outcome(**json.loads(text))


def shortest_failure(failed: Outcome, shape: Shape) -> tuple[int, Outcome]:
    """The least number of troubles, from the first on, with which the seed still fails."""
    for troubles in range(shape.troubles):
        outcome = play(failed.seed, shape._replace(troubles=troubles))
        if outcome.complaints:
            return troubles, outcome
    return shape.troubles, failed


def _play_here(seed: int, shape: Shape, *, verbose: bool, steps: str) -> Outcome:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 200_000), limit))
    level = logging.INFO if verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    gc.disable()  # finalizers must not run at moments that memory decides
    before = time.process_time()
    with ExitStack() as stack:
        world = World(seed, shape)
        if steps:
            opened: TextIO = stack.enter_context(open(steps, "w"))
            world.loop.log = opened
        world.run()
    turn = world.loop.longest_turn
    return Outcome(
        seed,
        world.complaints,
        world.trace,
        _digest(world),
        world.loop.now - FIRST_SECOND,
        time.process_time() - before,
        world.acknowledged(),
        world.troubles.count,
        world.network.requests,
        f"{turn.steps} steps in {turn.name}",
    )


def _digest(world: World) -> str:
    content = "\n".join([*world.trace, str(world.loop.checksum)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
