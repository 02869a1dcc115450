"""The log while nothing reads it."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from ottla.broker.observability import log_stream as module
from ottla.broker.observability.log_stream import LogStream, log_stream
from tests.doubles.eventually import eventually


@pytest.fixture(autouse=True)
def draining() -> Iterator[None]:
    """As in a process whose loop runs."""
    LogStream.start_draining()
    yield
    LogStream._may_start_thread = False


LINE = "x" * 999 + "\n"
PIPE_BYTES = 1 << 16


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """What reads, and standard error."""
    if request.param == "pipe":
        reading, writing = os.pipe()
    else:
        pair = socket.socketpair()
        reading, writing = (each.detach() for each in pair)
    stderr = open(writing, "w")  # noqa: SIM115  # for the test
    yield reading, stderr
    stderr.close()
    os.close(reading)


def read(descriptor: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(descriptor, size - len(found))
    return found


def test_what_nobody_reads_is_kept(ends: tuple[int, TextIO]) -> None:
    reading, stderr = ends
    stream = log_stream(stderr)
    lines = [f"{number:0999}\n" for number in range(600)]  # more than a pipe or a socket holds
    for line in lines:
        stream.write(line)
    assert read(reading, 600_000) == "".join(lines).encode()
    stream.write("later\n")
    assert read(reading, 6) == b"later\n"


def test_what_is_above_the_bound_is_counted(
    ends: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 10_000)
    reading, stderr = ends
    stream = log_stream(stderr)
    for _ in range(1_000):
        stream.write(LINE)
    os.set_blocking(reading, False)
    read_lines = 0

    def drained() -> bool:
        """The last lines may come behind the report."""
        nonlocal read_lines
        try:
            while found := os.read(reading, 65536):
                read_lines += found.count(b"\n")
        except BlockingIOError:
            pass
        return f"{1_000 - read_lines} lines of the log were dropped" in caplog.text

    eventually(drained, lambda: f"{read_lines} lines were read: {caplog.text}")


def test_descriptor_of_others_waits_as_before(ends: tuple[int, TextIO]) -> None:
    """It may be that of a shell."""
    _, stderr = ends
    log_stream(stderr).write("a line\n")
    assert not fcntl.fcntl(stderr.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


def test_reader_that_is_gone_fails_nothing() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stderr:
        stream = log_stream(stderr)
        os.close(reading)
        for _ in range(10):
            stream.write(LINE)
        stream.flush()


def test_file_is_written_as_before(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stderr:
        assert log_stream(stderr) is stderr
    assert isinstance(log_stream(io.StringIO()), io.StringIO)


def test_text_that_cannot_be_encoded_is_written(ends: tuple[int, TextIO]) -> None:
    reading, stderr = ends
    handler = logging.StreamHandler(log_stream(stderr))
    handler.emit(logging.makeLogRecord({"msg": "\ud800"}))
    assert os.read(reading, 100) == b"\\ud800\n"
    assert isinstance(handler.stream, LogStream)


def test_no_thread_starts_before_the_loop(ends: tuple[int, TextIO]) -> None:
    """A process that has one cannot be forked safely."""
    LogStream._may_start_thread = False
    reading, stderr = ends
    stream = log_stream(stderr)
    lines = [f"{number:0999}\n" for number in range(600)]
    for line in lines:
        stream.write(line)
    assert not [each for each in threading.enumerate() if each.name == "log-stream"]
    LogStream.start_draining()
    assert read(reading, 600_000) == "".join(lines).encode()


def test_a_forked_process_writes_its_own_lines_only(ends: tuple[int, TextIO]) -> None:
    """Also when the thread of the first process held the lock at the fork."""
    reading, stderr = ends
    stream = log_stream(stderr)
    assert isinstance(stream, LogStream)
    for _ in range(600):
        stream.write(LINE)
    with stream._lock:
        child = os.fork()
    if not child:
        LogStream.start_draining()
        stream.write("child\n")  # waits for the reader, as the lines of the first process do
        while stream._pending:
            time.sleep(0.01)
        os._exit(0)
    found = read(reading, 600_000 + len("child\n"))
    assert found.count(b"child\n") == 1
    assert os.waitpid(child, 0)[1] == 0
