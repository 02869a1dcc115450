"""The mutants, and a run on a module that is made for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import ROOT, judged, report
from tests.mutation.modules import MODULES
from tests.mutation.mutants import mutants
from tests.mutation.runner import KILLED, SURVIVED, Verdict

SOURCE = '''
import logging

logger = logging.getLogger("x")
LIMIT = 3


class Box:
    def __init__(self):
        self.items = []

    def add(self, item: int, limit: int = LIMIT) -> bool:
        """Adds it."""
        logger.info("adding %d", item + 1)
        assert item > 0
        if len(self.items) >= limit or not item:
            raise ValueError(f"{item + 1}")
        self.items.append(item)
        return True

    def __repr__(self) -> str:
        return "Box" * 2


def even(items):
    return [each for each in items if each % 2 == 0]
'''


def test_what_is_changed_and_what_is_left_alone() -> None:
    assert [each.name for each in mutants(SOURCE)] == [
        "Box.__init__: self.items = [] -> pass",
        "Box.add: len(self.items) >= limit or not item -> len(self.items) >= limit and (not item)",
        "Box.add: len(self.items) >= limit -> len(self.items) > limit",
        "Box.add: len(self.items) >= limit -> len(self.items) < limit",
        "Box.add: not item -> item",
        "Box.add: raise ValueError -> pass",
        "Box.add: self.items.append(item) -> pass",
        "Box.add: True -> False",
        "even: return [each for each in items if each % 2 == 0] -> return None",
        "even: [if each % 2 == 0] -> [if not ...]",
        "even: each % 2 == 0 -> each % 2 != 0",
        "even: each % 2 -> each * 2",
        "even: 2 -> 3",
        "even: 0 -> 1",
    ]


def test_a_mutant_differs_in_one_place() -> None:
    before = compile(SOURCE, "box", "exec")
    for mutant in mutants(SOURCE):
        assert mutant.compile("box") != before, mutant.name


def test_names_of_repeated_changes_are_numbered() -> None:
    source = "def f(a):\n    g(a, 1)\n    g(a, 1)\n"
    names = [each.name for each in mutants(source)]
    assert len(set(names)) == len(names)
    assert "f: 1 -> 2 #2" in names


def test_modules_and_their_tests_exist() -> None:
    for module, tests in MODULES.items():
        for path in (module, *tests):
            assert (ROOT / path).exists(), path


def test_judgements_are_about_mutants_that_exist() -> None:
    names = {
        (module, mutant.name)
        for module in dict.fromkeys(module for module, _ in judged())
        for mutant in mutants((ROOT / module).read_text())
    }
    assert [each for each in judged() if each not in names] == []


def test_a_score_is_good_if_it_is_high_and_all_survivors_are_judged() -> None:
    verdicts = [Verdict(f"f: {number} -> 0", KILLED, "test") for number in range(17)]
    verdicts += [Verdict(f"g: {number} -> 0", SURVIVED, "") for number in range(3)]
    reasons = {f"g: {number} -> 0": "why" for number in range(3)}
    score = "17 of 20 mutants killed (85.0 %), 3 judged, 0 not judged"
    assert report(verdicts, reasons) == ([score], True)
    lines, is_good = report(verdicts[1:], reasons)
    assert (len(lines), is_good) == (1, False)
    lines, is_good = report(verdicts, {**reasons, "f: 3 -> 0": "why"})
    assert (lines[0], is_good) == ("judged, but killed or gone: f: 3 -> 0", False)
    del reasons["g: 1 -> 0"]
    lines, is_good = report(verdicts, reasons)
    assert (lines[0], is_good) == ("survived: g: 1 -> 0", False)


@pytest.mark.skipif(sys.platform != "linux", reason="the runner forks")
def test_a_run(tmp_path: Path) -> None:
    """In a process of its own, as pytest cannot run in pytest."""
    (tmp_path / "box.py").write_text(SOURCE)
    (tmp_path / "test_box.py").write_text(
        "from box import Box\n"
        "def test_add():\n"
        "    box = Box()\n"
        "    assert box.add(1, 2)\n"
        "    assert box.add(1, 2)\n"
        "    assert box.items == [1, 1]\n"
    )
    program = (
        "import sys; from pathlib import Path; from tests.mutation.runner import run\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for each in run(Path({str(tmp_path / 'box.py')!r}), [{str(tmp_path)!r}]):\n"
        "    print(each.outcome, '|', each.mutant)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    verdicts = [line for line in done.stdout.splitlines() if " | " in line]
    assert len(verdicts) == 14, done.stdout + done.stderr
    assert [line for line in verdicts if line.startswith("survived")] == [
        "survived | Box.add: len(self.items) >= limit or not item -> "
        "len(self.items) >= limit and (not item)",
        "survived | Box.add: len(self.items) >= limit -> len(self.items) > limit",
    ]
    uncovered = [line for line in verdicts if line.startswith("not covered")]
    assert uncovered[0] == "not covered | Box.add: raise ValueError -> pass"
    assert sum(line.startswith("not covered | even:") for line in uncovered) == 6
