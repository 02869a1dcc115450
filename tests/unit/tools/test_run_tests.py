"""The runner of the suite: what it counts and when it fails, on folders of a test's own."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tools import run_tests

PASSES = "def test_one(): pass\ndef test_two(): pass\n"
FAILS = "def test_three(): assert False\n"


@pytest.mark.parametrize(
    ("last_line", "counts"),
    [
        ("508 passed in 91.09s (0:01:31)", {"passed": 508}),
        (
            "1 failed, 2 passed, 3 skipped, 4 warnings, 1 error in 0.10s",
            {"failed": 1, "passed": 2, "skipped": 3, "warning": 4, "error": 1},
        ),
        ("no tests ran in 0.01s", {}),
        ("Segmentation fault", {}),
        ("7 passed of which nothing is known", {}),
    ],
)
def test_the_last_line_is_counted(last_line: str, counts: dict[str, int]) -> None:
    assert run_tests.counts_of(f"....\n{last_line}\n") == Counter(counts)


def test_what_python_prints_when_it_ends_is_no_last_line() -> None:
    output = "..\n2 passed in 1.00s (0:00:01)\nResourceWarning: unclosed <socket in 3.0s>\n"
    assert run_tests.counts_of(output) == Counter(passed=2)
    assert not run_tests.counts_of("collected 2 items in 1.00s\n")


def test_the_total_reads_as_pytest_writes_it() -> None:
    results = [
        run_tests.Result("a", 1, "", run_tests.counts_of("1 failed, 2 passed, 1 error in 1.00s")),
        run_tests.Result("b", 0, "", run_tests.counts_of("3 passed, 1 skipped, 1 error in 1.00s")),
    ]
    line = run_tests.total_line(results, 61.5)
    assert line == "1 failed, 5 passed, 1 skipped, 2 errors in 61.50s (0:01:01)"
    assert run_tests.counts_of(line)["passed"] == 5


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    (tmp_path / "tests" / "doubles").mkdir(parents=True)
    (tmp_path / "tests" / "doubles" / "no_test.py").write_text(FAILS)
    return tmp_path / "tests"


def add(tree: Path, folder: str, text: str) -> None:
    (tree / folder).mkdir(parents=True)
    (tree / folder / f"test_{folder.replace('/', '_')}.py").write_text(text)


def run(tree: Path) -> int:
    assert tree.name == "tests"
    return run_tests.run_folders(os.environ, 2)


def test_every_folder_runs_whole_and_the_last_line_counts_all(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in ("spark", "new/deeper", "integration"):
        add(tree, folder, PASSES)
    assert run_tests.folders(tree) == ["tests/integration", "tests/spark", "tests/new"]
    assert run(tree) == 0
    printed = capfd.readouterr().out
    assert printed.count("2 passed in") == 3
    assert printed.splitlines()[-1].startswith("6 passed in ")


def test_what_is_measured_runs_alone_and_last(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in ("chaos", "integration", "unit"):
        add(tree, folder, PASSES)
    assert run(tree) == 0
    printed = capfd.readouterr().out
    last = printed.index("running tests/chaos")
    assert last > printed.index("======== tests/integration")
    assert last > printed.index("======== tests/unit")


@pytest.mark.parametrize(
    ("text", "code"), [(FAILS, 1), ("import no_such_module\n", 2), ("", 5), ("\x00", 2)]
)
def test_whatever_does_not_pass_makes_it_fail(
    tree: Path, capfd: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    add(tree, "good", PASSES)
    add(tree, "bad", text)
    assert run(tree) == 1
    printed = capfd.readouterr().out
    assert f"FAILED tests/bad: pytest ended with {code}" in printed
    assert "2 passed" in printed.splitlines()[-1]


def test_the_last_lines_name_what_failed_and_say_why(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fixture = (
        "import pytest\n@pytest.fixture\ndef left():\n    yield\n    raise OSError('a socket')\n"
    )
    add(
        tree,
        "bad",
        f"{fixture}{PASSES}\ndef test_leaves(left): pass\ndef test_no(): assert 2 == 3\n",
    )
    add(tree, "good", PASSES)
    assert run(tree) == 1
    *_, end = capfd.readouterr().out.partition("FAILED tests/bad: pytest ended with 1")
    assert "E       OSError: a socket" in end
    assert "assert 2 == 3" in end
    assert end.count("\nERROR ") == end.count("\nFAILED ") == 1
    assert "test_bad.py::test_leaves" in end
    assert "test_bad.py::test_no" in end


def test_a_pytest_that_dies_makes_it_fail(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(tree, "dies", "import os\ndef test_one(): os._exit(0)\n")
    assert run(tree) == 1
    assert "FAILED tests/dies" in capfd.readouterr().out


def test_a_test_outside_of_the_folders_is_an_error(tree: Path) -> None:
    (tree / "test_lost.py").write_text(PASSES)
    with pytest.raises(AssertionError, match="would not run"):
        run_tests.folders(tree)


def test_the_folders_of_this_project() -> None:
    found = run_tests.folders(Path(__file__).resolve().parents[2])
    assert {*run_tests.LONGEST_FIRST, *run_tests.ALONE} <= set(found)
    assert {"tests/unit", "tests/tidy"} <= set(found)
    assert "tests/doubles" not in found
