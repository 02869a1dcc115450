"""Runs the tests of a module against each of its mutants.

pytest collects the tests once. Then each mutant gets a forked process, in which the code of the
changed functions is swapped and the tests that execute the changed lines run until one fails. So a
mutant costs a fork and a few tests, not an interpreter, imports and a collection.

A mutant is killed if a test fails, if the tests take ten times the processor time that they take
without it, if they wait for ever, or if the process dies. One that no test notices survives.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.mutation.mutants import Mutant, mutants

KILLED, SURVIVED, NOT_COVERED = "killed", "survived", "not covered"
CONFIGURATION = Path(__file__).resolve().parents[2] / "pyproject.toml"
LEAST_CPU_SECONDS = 5  # before a mutant counts as one that does not end
LEAST_SECONDS = 30.0  # before it counts as one that waits for ever: the machine may be busy
SLOWER = 10.0  # than the tests are without it
MEMORY_BYTES = 4 << 30  # a mutant may append for ever


class Verdict(NamedTuple):
    mutant: str
    outcome: str
    by: str  # the test that failed, or why it counts as killed


class _Baseline(NamedTuple):
    """What each test executes of the module, and how long it takes."""

    lines: dict[str, set[int]]
    seconds: dict[str, float]
    failed: list[str]


class _Plugin:
    """Replaces the loop over the tests by the loop over the mutants."""

    def __init__(self, module: Path, only: str) -> None:
        self.module = module
        self.only = only
        self.verdicts: list[Verdict] = []
        self.problem = ""
        self._failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        import hypothesis  # pytest rewrites it, so not before pytest runs

        # A failure is enough: it need not be the simplest.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutation", derandomize=True, deadline=None, phases=phases
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        baseline = _in_child(lambda: self._measure(items), 3600.0)
        if not isinstance(baseline, _Baseline) or baseline.failed or not items:
            failed = baseline.failed if isinstance(baseline, _Baseline) else baseline
            self.problem = f"the tests fail without a mutant: {failed}"
            return True
        functions = _functions_of(self.module)
        for mutant in mutants(self.module.read_text()):
            if self.only in mutant.name:
                self.verdicts.append(self._judge(mutant, items, baseline, functions))
                _show(self.verdicts[-1], len(self.verdicts))
        return True

    def _measure(self, items: Sequence[pytest.Item]) -> _Baseline:
        self._silence(items[0].config)
        baseline = _Baseline({}, {}, [])
        for item, following in _with_next(items):
            trace = _Trace(str(self.module))
            began = time.monotonic()
            with trace:
                self._run(item, following)
            baseline.seconds[item.nodeid] = time.monotonic() - began
            baseline.lines[item.nodeid] = trace.lines
            if self._failed:
                baseline.failed.append(self._failed)
                self._failed = ""
        return baseline

    def _judge(
        self,
        mutant: Mutant,
        items: Sequence[pytest.Item],
        baseline: _Baseline,
        functions: dict[tuple[str, int], list[FunctionType]],
    ) -> Verdict:
        covering = [
            each for each in items if not baseline.lines[each.nodeid].isdisjoint(mutant.lines)
        ]
        if not covering:
            return Verdict(mutant.name, NOT_COVERED, "")
        covering.sort(key=lambda each: baseline.seconds[each.nodeid])
        seconds = sum(baseline.seconds[each.nodeid] for each in covering)
        code = mutant.compile(str(self.module))

        def run() -> str:
            self._silence(items[0].config)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            cpu_seconds = int(max(LEAST_CPU_SECONDS, seconds * SLOWER) + time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            _swap(functions, code)
            for item, following in _with_next(covering):
                self._run(item, following)
                if self._failed:
                    return self._failed
            return ""

        by = _in_child(run, max(LEAST_SECONDS, seconds * SLOWER))
        assert isinstance(by, str)
        return Verdict(mutant.name, KILLED if by else SURVIVED, by)

    def _silence(self, config: pytest.Config) -> None:
        """In a child: pytest reports to a copy of the standard output."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - until the process ends

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def run(module: Path, tests: Sequence[str], only: str = "") -> list[Verdict]:
    """The verdicts of all mutants whose name contains `only`. Raises RuntimeError if the tests do
    not run without a mutant."""
    plugin = _Plugin(module, only)
    # No server, no JVM: those tests are too slow for hundreds of mutants.
    arguments = [
        "-c",
        str(CONFIGURATION),
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not zookeeper and not kafka",
        # A built source archive leaves a list of its files, `tests` among them, in *.egg-info, and
        # pytest would rewrite the assertions of all that is listed with its plugins; this module is
        # imported by then.
        "-W",
        "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
    ]
    code = pytest.main([*arguments, *tests], plugins=[plugin])
    if plugin.problem or not plugin.verdicts:
        raise RuntimeError(plugin.problem or f"no mutant of {module} was run (pytest: {code})")
    return plugin.verdicts


class _Trace:
    """Records the lines of one file that are executed."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self.lines: set[int] = set()

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        return self._line if _is_file(frame.f_code, self._filename) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        self.lines.add(frame.f_lineno)
        return self._line


_files: dict[str, str] = {}


def _is_file(code: CodeType, filename: str) -> bool:
    """Real paths are compared: the checkout itself may be reached by a link."""
    name = code.co_filename
    if name not in _files:
        _files[name] = os.path.realpath(name)
    return _files[name] == filename


def _functions_of(module: Path) -> dict[tuple[str, int], list[FunctionType]]:
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and _is_file(each.__code__, str(module)):
            code = each.__code__
            found.setdefault((code.co_qualname, code.co_firstlineno), []).append(each)
    return found


def _swap(functions: dict[tuple[str, int], list[FunctionType]], code: CodeType) -> None:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        for function in functions.get((constant.co_qualname, constant.co_firstlineno), ()):
            if function.__code__ != constant and len(function.__code__.co_freevars) == len(
                constant.co_freevars
            ):
                function.__code__ = constant
        _swap(functions, constant)


def _with_next(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    for index, item in enumerate(items):
        yield item, items[index + 1] if index + 1 < len(items) else None


def _in_child(work: Any, seconds: float) -> object:
    """The result of `work` in a forked process, or a text that says how that process ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        try:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + seconds
    data = bytearray()
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return "it takes too long"
            part = os.read(reader, 1 << 20)
            if not part:
                break
            data += part
    finally:
        os.close(reader)
        _end(child)
    return pickle.loads(data) if data else "its process died"


def _end(child: int) -> None:
    for kill in (os.killpg, os.kill):  # the child may not have made its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _show(verdict: Verdict, count: int) -> None:
    if verdict.outcome != KILLED:
        print(f"{count:5} {verdict.outcome}: {verdict.mutant}", file=sys.stderr, flush=True)
