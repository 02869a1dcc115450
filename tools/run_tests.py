"""Run the whole test suite as users run it: `make test`.

    python tools/run_tests.py                      every folder of tests, two at a time
    python tools/run_tests.py --processes 1        every folder of tests, one after the other
    python tools/run_tests.py tests/unit -k topic  one pytest with these arguments
    python tools/run_tests.py --asyncio-debug      the asyncio parts in asyncio's debug mode

Java is found (or installed) first, because Spark, ZooKeeper and Apache Kafka need it; a machine on
which none can be installed gets one sentence that says so before any work is done.

Most tests of whole brokers wait, for a session to end or a JVM to start, and leave a processor
idle. So two pytest processes work through the folders: each folder, with the brokers and sessions
that its tests share, is one run. Its output appears whole when it has ended. Tests that measure how
long a cluster takes come last, alone. The last lines name each test that failed, say why, and count
all tests as pytest does; the exit code is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# What runs a second time with asyncio's debug mode: slow callbacks, un-awaited coroutines and
# calls from the wrong thread become visible there.
DEBUG_PATHS = ("tests/unit/broker", "tests/unit/controller")
# The folders that take longest are begun first, so that both processes end at about the same time.
LONGEST_FIRST = (
    "tests/integration",
    "tests/spark",
    "tests/compat",
    "tests/differential",
    "tests/interchange",
    "tests/unit",
)
# How soon a partition has a leader again is measured here: nothing else runs beside it.
ALONE = ("tests/chaos",)
PROCESSES = 2
# So many lines of tracebacks of a folder, from its first failure on, are printed again at the end.
MOST_REASONS = 20
# As pytest orders them in its last line.
OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")

_LAST_LINE = re.compile(r"=* ?\d+ [a-z]+(, \d+ [a-z]+)* in \d+\.\d+s")


class Result(NamedTuple):
    """How one pytest has ended."""

    path: str
    code: int
    output: str
    counts: Counter[str]


def find_java() -> str | None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "java.py")], stdout=subprocess.PIPE, text=True
    )
    if found.returncode:
        raise SystemExit(found.returncode)
    return found.stdout.strip().splitlines()[-1] if found.stdout.strip() else None


def folders(tests: Path) -> list[str]:
    """Every folder with tests, those that take longest first; a new one is found by itself."""
    found = {
        f"tests/{path.name}"
        for path in tests.iterdir()
        if path.is_dir() and any(path.rglob("test_*.py"))
    }
    assert not list(tests.glob("test_*.py")), "a test outside of the folders would not run"
    first = [path for path in LONGEST_FIRST if path in found]
    return first + sorted(found.difference(first))


def counts_of(output: str) -> Counter[str]:
    """The numbers in pytest's last line: `2 failed, 7 passed, 1 warning in 3.21s`.

    Python may print more when it ends, such as warnings of sockets that py4j's threads have left.
    """
    counts: Counter[str] = Counter()
    for line in reversed(output.strip().splitlines()):
        if _LAST_LINE.match(line):
            for number, outcome in re.findall(r"(\d+) ([a-z]+)", line.partition(" in ")[0]):
                singular = outcome.rstrip("s") if outcome in ("warnings", "errors") else outcome
                counts[singular] += int(number)
            break
    return counts


def failures_of(output: str) -> list[str]:
    """What failed and why, for those who keep only the end of a long log."""
    _, _, summary = output.rpartition(" short test summary info ")
    names = [line for line in summary.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    reasons = [line for line in output.splitlines() if line.startswith("E  ")]
    return [*reasons[:MOST_REASONS], *names]


def total_line(results: Sequence[Result], seconds: float) -> str:
    """As pytest's last line, for all runs together."""
    total = sum((result.counts for result in results), Counter[str]())
    words = [
        f"{total[outcome]} {outcome}{'s' if outcome in ('warning', 'error') and number > 1 else ''}"
        for outcome in OUTCOMES
        if (number := total[outcome])
    ]
    minutes = time.strftime("%H:%M:%S", time.gmtime(seconds)).removeprefix("0")
    return f"{', '.join(words) or 'no tests ran'} in {seconds:.2f}s ({minutes})"


class Runs:
    """Works through folders with some pytest processes at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.results: list[Result] = []
        self._waiting: deque[str] = deque()
        self._environment = environment
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()

    def work(self, paths: Sequence[str], processes: int) -> None:
        """Returns when all of them have ended."""
        self._waiting.extend(paths)
        threads = [threading.Thread(target=self._work) for _ in range(processes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stop()
            for thread in threads:
                thread.join()
            raise

    def _work(self) -> None:
        while (process := self._next()) is not None:
            path = str(process.args[-1])  # type: ignore[index]  # the command is a list
            output, _ = process.communicate()
            result = Result(path, process.returncode, output, counts_of(output))
            with self._lock:
                self._running.discard(process)
                self.results.append(result)
                print(f"\n======== {path} ========\n{output}", flush=True)

    def _next(self) -> subprocess.Popen[str] | None:
        """Starts pytest on the next folder."""
        with self._lock:
            if not self._waiting:
                return None
            path = self._waiting.popleft()
            # Two runs would write the same files of the cache, which nothing here reads.
            options = ["-q", "--durations=15", "-p", "no:cacheprovider"]
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, path],
                cwd=ROOT,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._running.add(process)
            print(f"running {path}", flush=True)
            return process

    def _stop(self) -> None:
        """As Ctrl-C does for one pytest: its fixtures end what they have started."""
        with self._lock:
            self._waiting.clear()
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)


def run_folders(environment: Mapping[str, str], processes: int) -> int:
    """Runs all there is; returns the exit code."""
    began = time.monotonic()
    paths = folders(ROOT / "tests")
    runs = Runs(environment)
    runs.work([path for path in paths if path not in ALONE], processes)
    runs.work([path for path in paths if path in ALONE], 1)
    for result in runs.results:
        if result.code or not result.counts["passed"]:
            print(f"FAILED {result.path}: pytest ended with {result.code}")
            print(*failures_of(result.output), sep="\n")
    print(total_line(runs.results, time.monotonic() - began), flush=True)
    return exit_code(runs.results, paths)


def exit_code(results: Sequence[Result], paths: Sequence[str]) -> int:
    """0 only when every folder has run, passed something and failed nothing."""
    passed = {result.path for result in results if not result.code and result.counts["passed"]}
    return 0 if passed == set(paths) else 1


def run_pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env=dict(environment)).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test suite.", allow_abbrev=False)
    parser.add_argument("--asyncio-debug", action="store_true")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    chosen, arguments = parser.parse_known_args()
    java_home = find_java()
    environment = {**os.environ, **({"JAVA_HOME": java_home} if java_home else {})}
    if chosen.asyncio_debug:
        debug = {**environment, "PYTHONASYNCIODEBUG": "1"}
        return run_pytest(arguments or DEBUG_PATHS, debug)
    if arguments:
        return run_pytest(["--durations=15", *arguments], environment)
    return run_folders(environment, chosen.processes)


if __name__ == "__main__":
    raise SystemExit(main())
