"""Where a broker's processor time goes during one more round: a sampling profile by py-spy.

A miss without its profile is a guess. The sampler stops the process 200 times a second and reads
its stacks from outside, those of C included; the rates of such a round count for nothing. Threads
that wait are left out: to poll, or for other threads. A function in C counts for the Python
function that calls it, and uvloop's own work for the event loop; system calls are shown by their
names, too.
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
# The first that is in the path of a frame's file counts; the path may begin anywhere above it.
# `<decode ...>` and `<encode ...>` are generated codecs.
PARTS = {
    "broker/net/": "network",
    "protocol/": "protocol",
    "<decode": "protocol",
    "<encode": "protocol",
    "broker/requests/": "requests",
    "broker/handlers/": "requests",
    "broker/metrics/": "metrics",
    "broker/replication/": "replication",
    "broker/purgatory/": "replication",
    "broker/coordination/": "groups",
    "broker/groups/": "groups",
    "broker/transactions/": "groups",
    "storage/": "log",
    "asyncio/": "event loop",
}
# Of a thread that waits: its system call, or the file of its innermost Python frame. For a moment
# after it was stopped it passes for running.
POLLS = ("epoll_wait", "epoll_pwait", "poll", "select")
WAITS = ("threading.py", "concurrent/futures/thread.py", "queue.py", "selectors.py")
# In C's library, of whichever part; not in the sum of the others.
SYSTEM_CALLS = "of all, system calls"
COLUMNS = (*dict.fromkeys(PARTS.values()), "other", SYSTEM_CALLS)


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
    options = ["--rate", str(SAMPLES_A_SECOND), "--format", "raw", "--function", "--native"]
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
    """Of py-spy's raw format: a line `frame;frame;frame COUNT` for each stack, innermost last; a
    frame is `NAME (FILE:LINE)`, or `NAME (LIBRARY)` in a library without lines."""
    parts: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    system_calls = 0
    for line in filter(None, stacks.splitlines()):
        stack, _, count = line.rpartition(" ")
        frames = [each.rstrip(")").partition(" (")[::2] for each in stack.split(";")]
        innermost, library = frames[-1]
        name, file = next((each for each in reversed(frames) if _is_python(each[1])), frames[-1])
        if innermost in POLLS or file.startswith(WAITS):
            continue
        part = next((PARTS[each] for each in PARTS if f"/{each}" in f"/{file}"), "other")
        parts[part] += int(count)
        if library.startswith("libc.") and not innermost.startswith("0x"):
            system_calls += int(count)
            name = f"{innermost}` in `{name}"
        elif part == "event loop":
            name = part
        functions[f"`{name}`"] += int(count)
    samples = parts.total()
    if not samples:
        return Profile(0, {}, [])
    shares = {part: number / samples for part, number in parts.items()}
    shares[SYSTEM_CALLS] = system_calls / samples
    return Profile(samples, shares, [(n, c / samples) for n, c in functions.most_common(TOP)])


def _is_python(file: str) -> bool:
    """Also a generated codec, `<decode NAME version N>:LINE`."""
    return file.rpartition(":")[0].endswith((".py", ">"))


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
