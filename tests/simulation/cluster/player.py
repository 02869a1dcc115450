"""The command line of the simulation."""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import resource
import time

from tests.simulation.cluster import seams
from tests.simulation.cluster.world import Shape, World

SHOWN_LINES = 120


def play(seed: int, shape: Shape) -> World:
    """One simulation from its start to its end."""
    world = World(seed, shape)
    world.run()
    return world


def digest(world: World) -> str:
    """Equal for equal histories."""
    return hashlib.sha256("\n".join(world.trace).encode()).hexdigest()[:16]


def main() -> None:
    """See __main__.py."""
    parser = argparse.ArgumentParser(description="Plays seeded simulations of a cluster.")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--internal-partitions", type=int, default=50)
    parser.add_argument("--min-insync-replicas", type=int, default=2)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--troubles", type=int, default=12)
    parser.add_argument("--power-loss", action="store_true")
    parser.add_argument("--twice", action="store_true", help="each seed twice: must be equal")
    parser.add_argument("--verbose", action="store_true", help="the brokers' own log lines too")
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 200_000), limit))
    level = logging.INFO if arguments.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    shape = Shape(
        brokers=arguments.brokers,
        partitions=arguments.partitions,
        internal_partitions=arguments.internal_partitions,
        min_insync_replicas=arguments.min_insync_replicas,
        producers=arguments.producers,
        troubles=arguments.troubles,
        power_loss=arguments.power_loss,
    )
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        digests = []
        for _ in range(2 if arguments.twice else 1):
            gc.collect()
            gc.disable()  # finalizers must not run at moments that memory decides
            started = seams._real_monotonic()
            world = play(seed, shape)
            gc.enable()
            seconds = seams._real_monotonic() - started
            digests.append(digest(world))
            virtual = world.loop.now - 1000
            written = "+".join(str(each.acknowledged) for each in world.producers)
            print(
                f"seed {seed}: {len(world.complaints)} complaints, {written} acknowledged, "
                f"{virtual:.0f} virtual seconds in {seconds:.1f} s, history {digests[-1]}",
                flush=True,
            )
        if len(set(digests)) > 1:
            failed += 1
            print(f"seed {seed} does not replay: {digests}")
        if world.complaints:
            failed += 1
            print("\n".join(world.trace[-SHOWN_LINES:]))
    print(f"{failed} of {arguments.count} seeds failed" if failed else "all seeds passed")
    _ = time
    raise SystemExit(1 if failed else 0)
