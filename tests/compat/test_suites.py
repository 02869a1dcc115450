"""The runner of `make compat`: a feature passes only if its check has run."""

import dataclasses
from pathlib import Path

import pytest

from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.compat.suites import run
from tests.compat.suites.features import NAMES
from tests.compat.suites.model import ROOT, Result, Suite, read_output, read_suites
from tests.compat.suites.report import (
    counted,
    differences,
    mark,
    render,
    security,
    share_groups,
    summary,
)
from tests.compat.suites.results import last_result, save
from tests.compat.suites.security import SECURED

SUITES = read_suites()


def suite(tmp_path: Path) -> Suite:
    return Suite("example", "Example", "1.0", ("no-such-program-here",), (), ("true",))


@pytest.mark.parametrize("each", SUITES, ids=lambda each: each.name)
def test_every_suite_is_whole(each: Suite) -> None:
    assert each.version[0].isdigit()
    allowed = each.allowed()
    assert allowed == [name for name in NAMES if name in allowed], "in the features' order, once"
    assert not allowed or "connect" in allowed
    assert each.command(each.run)


def test_the_clients_that_the_project_promises() -> None:
    titles = " ".join(each.title for each in SUITES)
    promised = (
        *("Java client 3.9", "Java client 4", "tools 3.9", "tools 4", "confluent-kafka"),
        *("kafka-python", "aiokafka", "franz-go", "sarama", "kafkajs", "kcat"),
        *("kafka-go", "@platformatic/kafka", "rskafka"),
    )
    assert not [client for client in promised if client not in titles]


def test_what_the_machine_lacks_is_not_run(tmp_path: Path) -> None:
    example = suite(tmp_path)
    assert example.missing() == ["no-such-program-here"]
    result = Result(example, not_run="no such program")
    assert mark(result, "connect") == "not run"
    assert summary(result).startswith("not run")
    assert result.regressions() == []


def test_what_a_program_says(tmp_path: Path) -> None:
    result = Result(suite(tmp_path))
    read_output(
        result,
        "ok connect\nsome log line\nok no-such-feature\nfail headers: lost one: x\nok headers\n"
        "lacks txn-commit\n",
    )
    assert result.states == {"connect": "ok", "headers": "fail", "txn-commit": "lacks"}
    assert result.reasons["headers"] == "lost one: x"
    assert [mark(result, name) for name in ("connect", "headers", "txn-commit", "consume")] == [
        "yes",
        "**no**",
        "-",
        "-",
    ]
    assert result.unlisted() == ["connect"]


def test_a_listed_feature_that_is_not_reported_is_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Suite, "allowed", lambda _: ["connect", "consume"])
    result = Result(suite(tmp_path))
    read_output(result, "ok connect\n")
    assert result.regressions() == ["consume"]


def finished(each: Suite, day: str, output: str) -> Result:
    result = Result(each, day=day)
    read_output(result, output)
    return result


def test_the_last_run_on_each_broker_is_kept(tmp_path: Path) -> None:
    example = suite(tmp_path)
    save(finished(example, "2026-01-01", "ok connect\nok headers\n"), OTTLA, tmp_path)
    save(finished(example, "2026-01-02", "ok connect\nfail headers: lost\n"), KAFKA, tmp_path)
    save(finished(example, "2026-01-03", "ok connect\n"), OTTLA, tmp_path)

    ours, other = (last_result(example, kind, tmp_path) for kind in (OTTLA, KAFKA))
    assert (ours.day, ours.states) == ("2026-01-03", {"connect": "ok"})
    assert (other.day, other.states) == ("2026-01-02", {"connect": "ok", "headers": "fail"})
    assert other.reasons == {"headers": "lost"}


def test_a_run_that_was_not_possible_takes_no_result_away(tmp_path: Path) -> None:
    example = suite(tmp_path)
    save(Result(example, not_run="no such program"), KAFKA, tmp_path)
    assert last_result(example, KAFKA, tmp_path).not_run == "no such program"
    save(finished(example, "2026-01-01", "ok connect\n"), KAFKA, tmp_path)
    save(Result(example, not_run="no such program"), KAFKA, tmp_path)
    assert last_result(example, KAFKA, tmp_path).day == "2026-01-01"


def test_a_result_is_of_one_version(tmp_path: Path) -> None:
    older = suite(tmp_path)
    save(finished(older, "2026-01-01", "ok connect\n"), KAFKA, tmp_path)
    newer = dataclasses.replace(older, version="2.0")
    assert last_result(newer, KAFKA, tmp_path).not_run == "not tried yet at this version"
    save(Result(newer, not_run="no such program"), KAFKA, tmp_path)
    assert last_result(newer, KAFKA, tmp_path).not_run == "no such program"


def test_the_document(tmp_path: Path) -> None:
    result = finished(suite(tmp_path), "2026-01-02", "ok connect\nfail headers: x\n")
    other = finished(suite(tmp_path), "2026-01-03", "ok connect\nok headers\n")
    text = render([result], [other])
    assert "1 client libraries and no tools." in text
    row = (
        "| Example | 1.0 | 1 features work, 1 do not | 2026-01-02 | 2 features work | 2026-01-03 |"
    )
    assert row in text
    assert "| versions agreed on, brokers and cluster id read | yes |" in text
    assert "| headers: repeated names, null and binary values | Example | **no** | yes |" in text


def test_what_differs_between_the_brokers(tmp_path: Path) -> None:
    example = suite(tmp_path)
    ours = finished(example, "2026-01-02", "ok connect\nok group-consumer-protocol\n")
    other = finished(example, "2026-01-02", "ok connect\nfail group-consumer-protocol: x\n")
    lines = differences([ours], [other])
    assert "| the new group protocol (KIP-848) | Example | yes | **no** |" in lines
    assert len([line for line in lines if "Example" in line]) == 1
    assert lines[-1].endswith("has the new group protocol in KRaft mode only.")
    assert len(differences([ours], [ours])) == 1
    not_run = Result(example, not_run="no such program")
    assert len(differences([ours], [not_run])) == 1


@pytest.mark.parametrize(
    ("option", "kinds"),
    [((), [OTTLA]), (("--kafka",), [KAFKA]), (("--both",), [OTTLA, KAFKA]), (("--page",), [])],
)
def test_a_run_is_kept_for_its_broker(
    option: tuple[str, ...], kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_suite(each: Suite, kind: str) -> Result:
        return finished(each, f"on {kind}", "".join(f"ok {name}\n" for name in each.allowed()))

    kept: list[tuple[str, str, str]] = []
    monkeypatch.setattr(run, "run_suite", run_suite)
    monkeypatch.setattr(run, "save", lambda it, kind: kept.append((it.suite.name, kind, it.day)))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["run", *option, "kcat"])
    (tmp_path / "docs").mkdir()
    assert run.main() == 0
    assert kept == [("kcat", kind, f"on {kind}") for kind in kinds]
    assert (tmp_path / "docs" / "compatibility.md").read_text().startswith("# Compatibility")


def test_the_page_has_the_kept_results() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert page == render(
        *([last_result(each, kind) for each in SUITES] for kind in (OTTLA, KAFKA))
    )


def test_versions_and_wrappers_of_a_client_count_once() -> None:
    results = [Result(each) for each in SUITES]
    assert counted(results).startswith("10 client libraries and Kafka's tools.")


def test_the_rows_on_secured_listeners_name_clients_and_tests() -> None:
    titles = {each.title for each in SUITES}
    for row in SECURED.values():
        assert set(row.clients) <= titles
        assert (ROOT / row.test).exists()
    [line] = [line for line in security([Result(each) for each in SUITES]) if "GSSAPI" in line]
    assert line.count("yes") == len(SECURED["sasl-gssapi"].clients)


def test_the_page_has_these_rows() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert all(f"| {row.text} |" in page for row in SECURED.values())
    assert "\n".join(share_groups()) in page
