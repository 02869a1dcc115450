"""What commands print holds no control characters of names from the cluster."""

from __future__ import annotations

import json
import re

import pytest
import typer

from ottla.cli.output import (
    Failure,
    note,
    print_fields,
    print_json,
    print_json_line,
    print_rows,
    say,
    time_text,
)
from ottla.cli.session import reported

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31mred\nforged row [bold red]markup[/]\u202e"
# What stays of it.
SHOWN = "a\\x1b]0;title\\x07\\x1b[2J\\x9b31mred\\nforged row [bold red]markup[/]\\u202e"


def test_a_table_has_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(
        [{"group": HOSTILE, "members": 1}, {"group": "b", "members": [1, 2]}], ("group", "members")
    )
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 3
    assert SHOWN in printed


def test_output_that_cannot_be_written_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(typer.Exit) as ended:
            reported(lambda: say("a line"))
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "ottla: No space left on device.\n"


def test_a_table_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    print_rows([{"group": HOSTILE}], ("group",))
    printed = capsys.readouterr().out
    assert SHOWN in printed
    assert len(printed.splitlines()) == 2


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_long_names_fold_and_numbers_stay_whole(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    name, client = "n" * 200, "c" * 90
    row = {"topic": name, "partition": 7, "committed": 123_456_789_012, "end": 99_999_999_999}
    print_rows([{**row, "client": client, "size": "123.4 MiB"}], [*row, "client", "size"])
    printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert max(map(len, printed.splitlines())) <= columns
    assert (printed.count("n"), printed.count("c")) == (200, 90)  # headings are in capitals
    assert "123456789012" in printed
    assert "99999999999" in printed
    assert "123.4 MiB" in printed


def test_wide_characters_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    row = {f"column{number}": "\u65e5" * 30 for number in range(4)}
    print_rows([row], list(row))
    printed = capsys.readouterr().out
    assert printed.count("\u65e5") == 120
    assert max(len(line) + line.count("\u65e5") for line in printed.splitlines()) <= 40


def test_fields_notes_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"group": HOSTILE})
    say(f"Group {HOSTILE} deleted.")
    note(HOSTILE)
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x07\x9b\u202e")


def test_json_keeps_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"group": HOSTILE})
    print_json_line(HOSTILE)
    printed = capsys.readouterr().out
    document, _, line = printed.rstrip("\n").rpartition("\n")
    assert json.loads(document) == {"group": HOSTILE}
    assert json.loads(line) == HOSTILE
    assert not set(printed) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    "timestamp", [253402300800000 + 86_400_000, 1772359200001000, (1 << 63) - 1]
)
def test_a_time_beyond_the_calendar_is_its_number(timestamp: int) -> None:
    assert time_text(timestamp) == str(timestamp)
    assert (time_text(-1), str(time_text(86_400_000))[:7]) == (None, "1970-01")


def test_why_a_command_fails_is_said_though_its_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        print("the results")
        raise Failure("no such topic")

    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(typer.Exit) as ended:
            reported(run)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "ottla: no such topic\n"
