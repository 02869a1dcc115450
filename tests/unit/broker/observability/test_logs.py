"""Lines as text and as JSON; what they are about; and what a start does not wait for."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.observability.logs import AuditFile, LineFormatter, open_audit_log
from ottla.broker.security.audit.security_log import LOGGERS, logger


def record(text: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("ottla.net", logging.WARNING, "x.py", 1, text, arguments, None)
    made.created = 1_700_000_000.25
    made.__dict__.update(more)
    return made


def failure() -> Any:
    try:
        raise ValueError("no")
    except ValueError:
        return sys.exc_info()


def formatter(as_json: bool, prepared: bool) -> LineFormatter:
    made = LineFormatter(as_json=as_json)
    if prepared:
        made.prepare()
    return made


@pytest.mark.parametrize("prepared", [True, False])
def test_text_is_time_level_logger_and_words(prepared: bool) -> None:
    made = record("%s sent %d bytes", "a", 3, peer="10.0.0.1")
    line = formatter(False, prepared).format(made)
    date, time, rest = line.split(" ", 2)
    logged = datetime.strptime(f"{date} {time}", "%Y-%m-%d %H:%M:%S.%f%z")
    assert logged.timestamp() == pytest.approx(made.created, abs=0.001)
    assert rest == "WARNING ottla.net  a sent 3 bytes"


def test_json_has_what_the_line_is_about() -> None:
    made = record("topic %s: %r", "größe", "x", topic="größe", partition=3)
    line = LineFormatter(as_json=True).format(made)
    assert "größe" in line
    assert list(json.loads(line).items()) == [
        ("time", "2023-11-14T22:13:20.250Z"),
        ("level", "warning"),
        ("logger", "ottla.net"),
        ("event", "topic größe: 'x'"),
        ("topic", "größe"),
        ("partition", 3),
    ]


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_a_line_names_its_worker(as_json: bool, prepared: bool) -> None:
    lines = formatter(as_json, prepared)
    lines.worker = 2
    line = lines.format(record("words"))
    if as_json:
        assert json.loads(line)["worker"] == 2
    else:
        assert line.endswith("WARNING [worker 2] ottla.net  words")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_a_failure_brings_its_traceback(as_json: bool, prepared: bool) -> None:
    line = formatter(as_json, prepared).format(record("it failed", exc_info=failure()))
    error = json.loads(line)["error"] if as_json else line.partition("\n  ")[2]
    assert error.startswith("Traceback (most recent call last):")
    assert error.endswith("ValueError: no")


FORGED = "05:00:00 CRITICAL ottla.broker  all data is lost"


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_a_text_from_outside_forges_no_line(as_json: bool, prepared: bool) -> None:
    """A group id, a client id or an error of a peer with a line end or an escape sequence."""
    hostile = f"x\r\n{FORGED}\x1b[2J\x9b\u2028\u202e\ud800"
    line = formatter(as_json, prepared).format(record("group %s", hostile, group=hostile))
    assert line.splitlines() == [line]
    assert not set(line) & set("\x1b\x9b\u2028\u202e\ud800")
    if as_json:
        assert json.loads(line)["group"] == hostile


@pytest.mark.parametrize("prepared", [True, False])
def test_the_text_of_an_exception_forges_no_line(prepared: bool) -> None:
    try:
        raise ValueError(f"bad name\n{FORGED}\x1b[2J")
    except ValueError:
        made = record("it failed", exc_info=sys.exc_info())
    line = formatter(False, prepared).format(made)
    assert "\x1b" not in line
    assert all(each.startswith("  ") for each in line.split("\n")[1:])
    assert f"  {FORGED}" in line


def test_what_is_no_json_does_not_lose_the_line() -> None:
    line = LineFormatter(as_json=True).format(record("a line", peer={b"x"}))
    assert json.loads(line)["event"] == "a line"


def test_structlog_does_not_hold_up_a_start_and_comes_without_rich() -> None:
    code = (
        "import sys, logging\n"
        "import ottla.broker.__main__, ottla.broker.server.broker_server\n"
        "from ottla.broker.observability.logs import *\n"
        "assert 'structlog' not in sys.modules, 'a start waits for it'\n"
        "record = logging.LogRecord('a', 20, 'x.py', 1, 'words', (), None)\n"
        "lines = LineFormatter(as_json=False)\n"
        "assert lines.format(record).endswith('words') and 'structlog' not in sys.modules\n"
        "lines.prepare()\n"
        "assert lines.format(record).endswith('words')\n"
        "assert 'structlog' in sys.modules and 'rich' not in sys.modules\n"
        "import rich\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    before = [(each, each.handlers[:], each.propagate, each.level) for each in LOGGERS]
    yield
    for each, handlers, propagate, level in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def opened(path: Path) -> AuditFile:
    return open_audit_log(str(path), logging.Formatter("%(message)s"), "ERROR")


def test_it_has_the_lines_whatever_the_level_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    handler = opened(path)
    for each in LOGGERS:
        each.info("line of %s", each.name)
        each.debug("allowed")
    assert path.read_text() == "line of ottla.audit\nline of kafka.authorizer.logger\n"
    assert path.stat().st_mode & 0o777 == 0o640
    handler.close()


def test_a_file_that_was_moved_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    handler = opened(path)
    logger.info("one")
    path.rename(tmp_path / "audit.log.1")
    logger.info("two")
    assert path.read_text() == "two\n"
    handler.close()


def test_a_line_that_cannot_be_written_goes_to_the_log_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = opened(tmp_path / "audit.log")

    def full(line: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(handler, "stream", SimpleNamespace(write=full, flush=handler.stream.flush))
    monkeypatch.setattr(handler, "reopenIfNeeded", lambda: None)
    logger.warning("no room")
    assert "no room" in caplog.text
    monkeypatch.undo()
    handler.close()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        opened(tmp_path / "absent" / "audit.log")
