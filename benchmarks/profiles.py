"""Where a broker's processor time goes during one more round: a sampling profile by py-spy.

A miss without its profile is a guess. The sampler reads the stacks of the process from outside, 200
times a second, and leaves out threads that wait. It stops the process for each sample, so the rates
of such a round count for nothing. A system call or a function in C counts for the Python function
that makes it; uvloop's own part, with its system calls, for the event loop.
"""

from __future__ import annotations

import collections
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

SAMPLES_A_SECOND = 200
# Attaching reads the symbols of the interpreter.
ATTACH_SECONDS = 1.0
END_SECONDS = 30.0
TOP = 4
# The first that a frame's file begins with; `<decode ...>` and `<encode ...>` are generated codecs.
PARTS = {
    "ottla/broker/net/": "network",
    "ottla/protocol/": "protocol",
    "<decode": "protocol",
    "<encode": "protocol",
    "ottla/broker/requests/": "requests",
    "ottla/broker/handlers/": "requests",
    "ottla/broker/metrics/": "metrics",
    "ottla/broker/replication/": "replication",
    "ottla/broker/purgatory/": "replication",
    "ottla/broker/coordination/": "groups",
    "ottla/broker/groups/": "groups",
    "ottla/broker/transactions/": "groups",
    "ottla/storage/": "log",
    "asyncio/": "event loop",
}
COLUMNS = (*dict.fromkeys(PARTS.values()), "other")


class Profile(NamedTuple):
    """Shares of the samples: by part of the broker, and of the functions that have the most."""

    samples: int
    parts: dict[str, float]
    functions: list[tuple[str, float]]


def check_available() -> None:
    """Raises SystemExit if there is no py-spy for this interpreter."""
    if not _executable().exists():
        raise SystemExit("--profile needs py-spy: pip install py-spy")


def _executable() -> Path:
    return Path(sys.executable).with_name("py-spy")


@contextmanager
def sampled(processes: Sequence[int]) -> Iterator[list[Profile]]:
    """Samples processes while the block runs; their common profile is in the list behind it.

    Raises RuntimeError if a sampler can't attach (it may need the right to trace processes).
    """
    found: list[Profile] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(each) for each in processes]
        samplers = [_start(each, file) for each, file in zip(processes, files, strict=True)]
        try:
            time.sleep(ATTACH_SECONDS)
            yield found
        finally:
            outputs = [_end(each) for each in samplers]
        missing = [text for file, text in zip(files, outputs, strict=True) if not file.exists()]
        if missing:
            raise RuntimeError(f"py-spy has sampled nothing: {missing[0]}")
        found.append(profile_of("\n".join(file.read_text() for file in files)))


def _start(process: int, file: Path) -> subprocess.Popen[bytes]:
    options = ["--rate", str(SAMPLES_A_SECOND), "--format", "raw", "--function"]
    command = [str(_executable()), "record", "--pid", str(process), *options, "-o", str(file)]
    # It ends with the round; a day is its longest.
    return subprocess.Popen(
        [*command, "--duration", "86400"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _end(sampler: subprocess.Popen[bytes]) -> str:
    sampler.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        return sampler.communicate(timeout=END_SECONDS)[0].decode(errors="replace")
    sampler.kill()
    return sampler.communicate()[0].decode(errors="replace")


def profile_of(stacks: str) -> Profile:
    """Of py-spy's raw format: a line `frame;frame;frame COUNT` for each stack, innermost last."""
    parts: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for line in filter(None, stacks.splitlines()):
        stack, _, count = line.rpartition(" ")
        name, _, file = stack.rpartition(";")[2].rstrip(")").partition(" (")
        part = next((PARTS[start] for start in PARTS if file.startswith(start)), "other")
        parts[part] += int(count)
        functions["event loop" if part == "event loop" else f"`{name or file}`"] += int(count)
    samples = parts.total()
    shares = {part: number / samples for part, number in parts.items()}
    return Profile(samples, shares, [(n, c / samples) for n, c in functions.most_common(TOP)])


def table(profiles: dict[str, Profile]) -> str:
    """Markdown, a row for each line that was profiled; shares in percent."""
    lines = [
        f"| line | samples | {' | '.join(COLUMNS)} | most in |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for name, profile in profiles.items():
        shares = " | ".join(f"{profile.parts.get(part, 0.0):.0%}" for part in COLUMNS)
        most = ", ".join(f"{function} {share:.0%}" for function, share in profile.functions)
        lines.append(f"| {name} | {profile.samples:,} | {shares} | {most} |")
    return "\n".join(lines)
