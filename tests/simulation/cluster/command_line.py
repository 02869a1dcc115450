"""The command line of the simulation."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.simulation.cluster.player import Outcome, play, shortest_failure
from tests.simulation.cluster.world import Shape

SHOWN_LINES = 150


def main() -> None:
    """See __main__.py."""
    arguments = _parsed()
    shape = Shape(
        brokers=arguments.brokers,
        partitions=arguments.partitions,
        internal_partitions=arguments.internal_partitions,
        min_insync_replicas=min(arguments.min_insync_replicas, arguments.brokers),
        producers=arguments.producers,
        troubles=arguments.troubles,
        power_loss=arguments.power_loss,
        descriptor_faults=arguments.descriptor_faults,
        kinds=arguments.kinds,
        later_kinds=arguments.later_kinds,
        operator=arguments.operator,
        tiered=arguments.tiered,
        workers=arguments.workers,
    )
    deadline = _real_seconds() + arguments.seconds if arguments.seconds else None
    failed = played = 0
    seed = arguments.seed
    count = arguments.count or (1 if deadline is None else sys.maxsize)
    while played < count and (deadline is None or _real_seconds() < deadline):
        outcome = play(seed, shape, verbose=arguments.verbose, steps=arguments.steps)
        print(outcome.summary, flush=True)
        if arguments.twice and not _replays(outcome, arguments):
            failed += 1
        if outcome.complaints:
            failed += 1
            _show(outcome, shape, shrinks=not arguments.no_shrink)
        played += 1
        seed += arguments.stride
    print(f"{failed} of {played} seeds failed" if failed else f"all {played} seeds passed")
    raise SystemExit(1 if failed else 0)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plays seeded simulations of a cluster.")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", help="how many seeds, 1 by default")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--internal-partitions", type=int, default=50)
    parser.add_argument("--min-insync-replicas", type=int, default=2)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--troubles", type=int, default=12)
    parser.add_argument("--power-loss", action="store_true")
    parser.add_argument(
        "--descriptor-faults",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="files that cannot be opened at times",
    )
    parser.add_argument("--tiered", action="store_true", help="topics with tiered storage")
    parser.add_argument("--workers", type=int, default=1, help="brokers of each machine")
    parser.add_argument("--kinds", default="", help="only these troubles, such as kill,full")
    parser.add_argument(
        "--later-kinds", action="store_true", help="also the troubles that older seeds do not have"
    )
    parser.add_argument(
        "--operator", action="store_true", help="also what operators and their tools do"
    )
    parser.add_argument("--twice", action="store_true", help="again in a fresh process: equal?")
    parser.add_argument("--verbose", action="store_true", help="the brokers' own log lines too")
    parser.add_argument("--steps", default="", help="a file for every callback and clock reading")
    parser.add_argument("--seconds", type=float, help="no seed begins after this time")
    parser.add_argument("--stride", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for fewer troubles")
    return parser.parse_args()


def _real_seconds() -> float:
    return os.times().elapsed


def _replays(outcome: Outcome, arguments: argparse.Namespace) -> bool:
    """Whether a fresh process with the same shape comes to the same history."""
    command = [sys.executable, "-m", "tests.simulation.cluster", str(outcome.seed), "--no-shrink"]
    for name, value in vars(arguments).items():
        if name in Shape._fields:
            option = "--" + name.replace("_", "-")
            if name == "descriptor_faults" and not value:
                command.append("--no-descriptor-faults")
            else:
                command += [option] if value is True else [option, str(value)] if value else []
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if f"history {outcome.digest}" in found.stdout:
        return True
    print(f"seed {outcome.seed} does not replay: {found.stdout.splitlines()[:1]}")
    return False


def _show(outcome: Outcome, shape: Shape, *, shrinks: bool) -> None:
    print("\n".join(outcome.complaints))
    troubles = shape.troubles
    if shrinks:
        troubles, outcome = shortest_failure(outcome, shape)
    print(f"seed {outcome.seed} fails with --troubles {troubles}; the end of its history:")
    print("\n".join(outcome.trace[-SHOWN_LINES:]), flush=True)
