"""The file of the security log: who may read it, when it is moved, when it cannot be written."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla.broker.observability.logs import AuditFile, open_audit_log
from ottla.broker.security.audit.security_log import LOGGERS, logger


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
