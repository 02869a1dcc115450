"""Figures of benchmarks: kept on disk by the round, and written into a page."""

from pathlib import Path

import pytest

from benchmarks.kept import Kept
from benchmarks.page import replace_block

PAGE = """# Page
<!-- figures: load -->

old

<!-- end of figures: load -->
the end
"""


def test_a_round_is_on_disk_when_it_is_added(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "figures.json", continues=False)
    kept.begin("a machine")
    kept.add("groups 10", "ottla", {"commits/s": 3.0})
    kept.add("groups 10", "ottla", {"commits/s": 1.0, "p99 ms": 2.0})
    read = Kept(tmp_path / "figures.json", continues=True)
    assert read.count("groups 10", "ottla") == 2
    assert read.count("groups 10", "kafka") == 0
    assert read.medians("groups 10", "ottla") == {"commits/s": 2.0, "p99 ms": 2.0}
    assert read.spreads("groups 10", "ottla")["commits/s"] == (1.0, 3.0)
    assert [run.endswith("a machine") for run in read.runs] == [True]


def test_a_run_that_does_not_continue_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    Kept(path, continues=False).add("a", "ottla", {"x": 1.0})
    other = Kept(path, continues=False)
    assert other.lines() == []
    other.add("b", "ottla", {"x": 1.0})
    assert Kept(path, continues=True).lines() == ["b"]


def test_a_run_without_figures_is_not_named(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "figures.json", continues=True)
    kept.begin("a machine")
    assert kept.runs == []


def test_the_text_between_the_comments_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    replace_block(page, "load", "new\n")
    assert page.read_text() == PAGE.replace("old", "new")
    replace_block(page, "load", "new")
    assert page.read_text() == PAGE.replace("old", "new")


@pytest.mark.parametrize("text", ["", PAGE + PAGE, PAGE.replace("end of figures", "end")])
def test_a_page_without_one_pair_of_comments_is_left(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="needs one"):
        replace_block(page, "load", "new")
    assert page.read_text() == text
