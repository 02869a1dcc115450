"""The columns of one and of several workers beside Kafka's."""

from pathlib import Path

from benchmarks.bench import WORKS
from benchmarks.report import BESIDE, WORKERS, Report

TITLES = "| what | Ottla | Kafka 3.9.1 | ratio | cold ratio | aim |"


def test_workers_have_columns_and_aims_of_their_own(tmp_path: Path) -> None:
    report = Report(tmp_path / "results.md", "a machine", 1.0, with_kafka=True)
    figures = {
        "tiny requests/s over 100 connection(s)": (500.0, 1000.0, 1100.0),
        "tiny over 100 connection(s): broker CPU us each": (80.0, 70.0, 75.0),
        "resident after start: MB": (40.0, 400.0, 70.0),
    }
    for name, values in figures.items():
        for target, value in zip(("ottla", "kafka", WORKERS), values, strict=True):
            report.add(target, {name: value}, is_warm=True)
    report.write()
    text = (tmp_path / "results.md").read_text()
    assert f"{TITLES} Ottla, workers | their ratio | their aim |" in text
    rows = [line.split(" | ") for line in text.splitlines() if "connection(s)" in line]
    assert [row[5:] for row in rows] == [
        [">= 1.0 missed", "1,100", "1.10", ">= 1.0 met |"],
        ["", "75", "1.07", "<= 1.0 missed |"],
    ]
    assert "| 70 | 0.17 | <= 0.18 met |" in text


def test_without_workers_there_is_no_empty_column(tmp_path: Path) -> None:
    report = Report(tmp_path / "results.md", "a machine", 1.0, with_kafka=True)
    report.add("ottla", {"MB/s": 1.0}, is_warm=True)
    report.write()
    assert f"{TITLES}\n" in (tmp_path / "results.md").read_text()


def test_another_checkout_has_its_figure_and_the_ratio_to_it(tmp_path: Path) -> None:
    report = Report(tmp_path / "results.md", "a machine", 1.0, with_kafka=True)
    for target, value in (("ottla", 3.0), (BESIDE, 4.0)):
        report.add(target, {"MB/s": value}, is_warm=True)
    report.add("ottla", {"records/s": 5.0}, is_warm=True)
    report.write()
    text = (tmp_path / "results.md").read_text()
    assert f"{TITLES} Ottla, other checkout | ratio to it |\n" in text
    assert "| 4 | 0.75 |\n" in text
    assert "| not measured |  |\n" in text


def test_lines_that_the_aims_name_are_measured_with_workers() -> None:
    alone = {work.name for work in WORKS if work.one_broker}
    assert alone == {"loading", "scrape"}
