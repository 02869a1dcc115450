"""Many seeds on all cores: `python -m tests.simulation.cluster.many SECONDS [SHAPE ARGUMENTS]`.

Each core plays seeds of its own, of several shapes in turn, until the time is over. What fails is
printed with its seed and shape as it happens; sums are printed now and then, and at the end.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time

_SHAPES = (
    [],
    ["--power-loss"],
    ["--brokers", "5"],
    ["--brokers", "1", "--power-loss"],
    ["--internal-partitions", "5", "--producers", "9", "--troubles", "25"],
    ["--power-loss", "--troubles", "25"],
    ["--tiered"],
    ["--tiered", "--power-loss", "--internal-partitions", "5"],
    ["--brokers", "4", "--workers", "2", "--internal-partitions", "10"],
    ["--brokers", "2", "--workers", "2", "--power-loss"],
)
# A third of the seeds each has the troubles that older seeds do not have, and those of operators.
SHAPES = (
    *_SHAPES,
    *([*each, "--later-kinds"] for each in _SHAPES),
    *([*each, "--operator"] for each in _SHAPES),
)
# So many seeds of one shape are played by one process, which forks for each of them: the start of
# a process and its imports take half a second.
SEEDS_A_PROCESS = 6
SEEDS_A_LINE = 20
SUMMARY = re.compile(
    r"seed \d+: (\d+) complaints.*; (\d+) troubles, (\d+) requests; "
    r"(\d+) virtual seconds in ([\d.]+) s"
)


FIRST_LINE = re.compile(r"^(?=seed (\d+): )", re.MULTILINE)


def by_seed(output: str) -> list[tuple[str, str]]:
    """(seed, what was printed for it) of each seed that has been played."""
    parts = FIRST_LINE.split(output)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


class Sums:
    """What all cores did."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seeds = 0
        self.failed: list[str] = []
        self.troubles = self.requests = 0
        self.virtual_seconds = 0.0
        self.processor_seconds = 0.0

    def add(self, name: str, output: str) -> None:
        found = SUMMARY.search(output)
        with self.lock:
            self.seeds += 1
            if found is not None:
                self.troubles += int(found[2])
                self.requests += int(found[3])
                self.virtual_seconds += float(found[4])
                self.processor_seconds += float(found[5])
            if found is None or found[1] != "0":
                self.failed.append(name)
                print(f"FAILED: {name}\n{output}", flush=True)
            if self.seeds % SEEDS_A_LINE == 0:
                print(self.line, flush=True)

    @property
    def line(self) -> str:
        rate = self.virtual_seconds / max(1.0, self.processor_seconds)
        return (
            f"{self.seeds} seeds, {len(self.failed)} failed; "
            f"{self.virtual_seconds / 3600:.1f} virtual hours, {self.troubles} troubles, "
            f"{self.requests} requests; {self.processor_seconds / 3600:.2f} hours of a processor, "
            f"{rate:.1f} virtual seconds for each second of it"
        )


def play(first: int, stride: int, deadline: float, extra: list[str], sums: Sums) -> None:
    """One core's seeds."""
    seed, step = first, 0
    while (left := deadline - time.monotonic()) > 0:
        shape = [*SHAPES[(first + step) % len(SHAPES)], *extra]
        block = [
            str(seed),
            str(SEEDS_A_PROCESS),
            "--stride",
            str(stride),
            "--seconds",
            f"{left:.1f}",
        ]
        found = subprocess.run(
            [sys.executable, "-m", "tests.simulation.cluster", *block, *shape],
            capture_output=True,
            text=True,
            check=False,
        )
        played = by_seed(found.stdout)
        for name, output in played:
            sums.add(f"{name} {' '.join(shape)}", output + found.stderr)
        if not played:  # it broke
            sums.add(f"{seed} {' '.join(shape)}", found.stdout + found.stderr)
        seed += stride * SEEDS_A_PROCESS
        step += 1


def main() -> None:
    """See the head of the module."""
    seconds, extra = float(sys.argv[1]), sys.argv[2:]
    cores = int(os.environ.get("SIMULATE_CORES", "0")) or len(os.sched_getaffinity(0))
    first = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1_000, 10**9)
    print(f"seeds from {first} on, {cores} cores, {seconds:.0f} seconds", flush=True)
    sums = Sums()
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(target=play, args=(first + core, cores, deadline, extra, sums))
        for core in range(cores)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(sums.line)
    print("\n".join(sums.failed))
    raise SystemExit(1 if sums.failed else 0)


if __name__ == "__main__":
    main()
