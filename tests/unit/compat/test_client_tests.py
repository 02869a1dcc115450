"""The results and the page of `make compat-client-tests`."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.compat.client_tests import kafka_python
from tests.compat.client_tests.aiokafka import without_random_parameters
from tests.compat.client_tests.catalogue import SUITES
from tests.compat.client_tests.docker_stand_in import stand_in
from tests.compat.client_tests.go_tests import pattern_of, read_events
from tests.compat.client_tests.model import FAILED, PASSED, SKIPPED, Results, Run, Suite
from tests.compat.client_tests.page import PAGE, render
from tests.compat.client_tests.run import failed_pattern, keep
from tests.compat.client_tests.sarama import functional_tests
from tests.compat.ecosystem.clusters import KAFKA, OTTLA


def _run(tests: dict[str, str]) -> Run:
    return Run("2026-11-23", "3.9.1", "1.0", 5, tests)


def _suite() -> Suite:
    return Suite("a", "A", "1.0", (), lambda: None, lambda _: {}, pattern_of, "A note.")


def test_states_of_go_tests_with_subtests() -> None:
    lines = (
        '{"Action":"start"}',
        '{"Action":"run","Test":"TestA"}',
        '{"Action":"run","Test":"TestA/one"}',
        '{"Action":"fail","Test":"TestA/one","Elapsed":1}',
        '{"Action":"pass","Test":"TestA","Elapsed":1}',
        "a line of the program",
        '{"Action":"run","Test":"TestB"}',
        '{"Action":"skip","Test":"TestB"}',
        '{"Action":"run","Test":"TestC"}',  # the process ended in it
        '{"Action":"fail"}',
    )
    assert read_events("\n".join(lines), "sasl") == {
        "sasl/TestA": PASSED,
        "sasl/TestA/one": FAILED,
        "sasl/TestB": SKIPPED,
        "sasl/TestC": FAILED,
    }


def test_the_pattern_of_failed_tests_names_each_test_once() -> None:
    assert pattern_of(["TestA/one", "TestA", "sasl/TestB/x"]) == "^(TestA|TestB)$"


def test_states_of_a_report_of_pytest(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="test.integration.test_x" name="test_a[1]" />'
        '<testcase classname="test.integration.test_x" name="test_b"><failure/></testcase>'
        '<testcase classname="test.integration.test_x" name="test_c"><error/></testcase>'
        '<testcase classname="test.integration.test_x" name="test_d"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert kafka_python.read_report(report) == {
        "test_x/test_a[1]": PASSED,
        "test_x/test_b": FAILED,
        "test_x/test_c": FAILED,
        "test_x/test_d": SKIPPED,
    }


def test_a_test_with_random_parameters_has_the_same_name_in_each_run() -> None:
    name = "test_assignors/test_reassignment_with_random_subscriptions_and_changes"
    states = {f"{name}[0-13-26]": PASSED, f"{name}[10-11-25]": FAILED, "test_x/test_y[1-2]": PASSED}
    found = {f"{name}[0]": PASSED, f"{name}[10]": FAILED, "test_x/test_y[1-2]": PASSED}
    assert without_random_parameters(states) == found


def test_what_passes_on_kafka_is_the_allow_list(tmp_path: Path) -> None:
    results = Results("a", tmp_path)
    results.save(KAFKA, _run({"one": PASSED, "two": PASSED, "three": FAILED, "four": FAILED}))
    results.save(OTTLA, _run({"one": PASSED, "two": FAILED, "three": PASSED, "four": FAILED}))
    assert results.allowed() == ["one", "two"]
    assert results.differences() == ["two"]
    assert results.beyond() == ["three"]
    assert results.failed_on_both() == ["four"]


def test_tests_that_run_again_replace_their_state_and_are_named(tmp_path: Path) -> None:
    results = Results("a", tmp_path)
    results.save(OTTLA, _run({"one": PASSED, "two": FAILED}))
    results.replace(OTTLA, {"two": PASSED})
    run = Results("a", tmp_path).runs[OTTLA]
    assert run.tests == {"one": PASSED, "two": PASSED}
    assert run.again == ("two",)


def test_a_part_of_a_suite_without_a_kept_run_is_not_kept(tmp_path: Path) -> None:
    results = Results("a", tmp_path)
    assert failed_pattern(_suite(), results, OTTLA) == ""
    assert not keep(results, OTTLA, _run({"TestA": PASSED}), part=True)
    assert not Results("a", tmp_path).runs


def test_a_part_of_a_suite_goes_into_the_kept_run(tmp_path: Path) -> None:
    results = Results("a", tmp_path)
    assert keep(results, OTTLA, _run({"TestA": PASSED, "TestB/x": FAILED}), part=False)
    assert failed_pattern(_suite(), results, OTTLA) == "^(TestB)$"
    assert keep(results, OTTLA, _run({"TestB/x": PASSED}), part=True)
    kept = Results("a", tmp_path)
    assert kept.runs[OTTLA].tests == {"TestA": PASSED, "TestB/x": PASSED}
    assert failed_pattern(_suite(), kept, OTTLA) == ""


def test_saramas_functional_tests_are_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "functional_a_test.go").write_text(
        "func TestFuncA(t *testing.T) {\n}\nfunc helper() {\n}\nfunc TestFuncB(t *testing.T) {\n"
    )
    (tmp_path / "functional_test.go").write_text("func TestMain(m *testing.M) {\n")
    (tmp_path / "unit_test.go").write_text("func TestOther(t *testing.T) {\n")
    assert functional_tests(tmp_path) == ["TestFuncA", "TestFuncB"]
    assert functional_tests(tmp_path, "^(TestFuncB|TestOther)$") == ["TestFuncB"]


def test_the_page_has_the_counts_and_the_differences(tmp_path: Path) -> None:
    results = Results("a", tmp_path)
    results.save(KAFKA, _run({"one": PASSED, "two": PASSED}))
    results.save(OTTLA, _run({"one": PASSED, "two": FAILED}))
    page = render([(_suite(), results)])
    assert "| A | 1.0 | 2 | 1 pass, 1 fail, 0 skipped | 2 pass, 0 fail, 0 skipped |" in page
    assert "Passes on Kafka and not on Ottla:\n\n- `two`" in page


def test_the_command_docker_stops_and_starts_a_broker(tmp_path: Path) -> None:
    calls: list[str] = []

    class Node:
        bootstrap = ""

        def start(self) -> None:
            calls.append("start")

        def stop(self) -> None:
            calls.append("stop")
            if len(calls) > 2:
                raise ValueError("it is down")

        def kill(self) -> None: ...

    with stand_in(tmp_path, {2: Node()}) as command:
        place = command.place
        for action in ("stop", "stop", "start", "start"):
            subprocess.run([place / "docker", "compose", action, "kafka-2"], check=True)
        failed = subprocess.run(
            [place / "docker", "compose", "stop", "kafka-2"], capture_output=True, text=True
        )
        command.start_all()
        other = subprocess.run([place / "docker", "ps"], capture_output=True)
    assert calls == ["stop", "start", "stop", "start"]
    assert "it is down" in failed.stderr
    assert failed.returncode == other.returncode == 1
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(OSError):
        late.connect(str(tmp_path / "docker.socket"))


def test_nothing_that_passes_on_kafka_fails_on_ottla_in_the_kept_results() -> None:
    differences = {each.name: Results(each.name).differences() for each in SUITES}
    assert not {name: found for name, found in differences.items() if found}


def test_the_page_is_that_of_the_kept_results() -> None:
    page = render([(suite, Results(suite.name)) for suite in SUITES])
    assert PAGE.read_text("utf-8") == page, (
        "python -m tests.compat.client_tests.run --page writes it"
    )
