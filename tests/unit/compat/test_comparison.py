"""What `make compat-client-tests` and `make compat-ecosystem` share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.compat.comparison import chosen_brokers, command_line, end_with_sigterm, run_directory
from tests.compat.ecosystem.clusters import KAFKA, OTTLA


def test_both_brokers_without_an_option() -> None:
    parser = command_line("Runs it.\n\nMore.", ["a", "b"], "suite")
    assert parser.description == "Runs it."
    assert chosen_brokers(parser.parse_args([])) == (OTTLA, KAFKA)
    chosen = parser.parse_args(["--broker", KAFKA, "--only", "a", "--only", "b"])
    assert chosen_brokers(chosen) == [KAFKA]
    assert chosen.only == ["a", "b"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line("Runs it.", ["a"], "suite").parse_args(["--only", "c"])
    assert "'c'" in capsys.readouterr().err


def test_sigterm_ends_the_run_with_its_exit_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        end_with_sigterm()
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM


def test_the_directory_of_a_run_stays_only_where_it_is_kept(tmp_path: Path) -> None:
    with run_directory("a", KAFKA, tmp_path) as kept:
        (kept / "broker.log").touch()
    with run_directory("a", KAFKA, None) as removed:
        (removed / "broker.log").touch()
    assert (kept / "broker.log").exists()
    assert kept.parent == tmp_path
    assert not removed.exists()
