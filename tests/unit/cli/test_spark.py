"""`ottla spark package` as a command: its output, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla import __version__
from ottla.cli import spark_package
from ottla.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ottla", "spark", "package", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_the_command_prints_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch) == 0
    size = (tmp_path / "pyspark_ottla.zip").stat().st_size
    assert capsys.readouterr().out == (
        f"wrote pyspark_ottla.zip: the connector of ottla {__version__}, {size} bytes\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["pyspark_ottla.zip"]


@pytest.mark.parametrize(
    ("output", "code", "text"),
    [
        ("connector.egg", 2, "the file connector.egg must end in .zip: Spark takes no other name"),
        ("none/one.zip", 1, "cannot write none/one.zip: there is no directory none"),
    ],
)
def test_what_cannot_be_written(
    output: str,
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--output", output) == code
    assert capsys.readouterr().err == f"ottla: {text}\n"
    assert not list(tmp_path.iterdir())


def test_without_the_connector_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark_package, "find_spec", lambda name: None)
    assert run(monkeypatch) == 1
    assert "the package ottla.storage is not installed here" in capsys.readouterr().err
