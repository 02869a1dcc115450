"""The states of log directories."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.app import app
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import DescribeConfigsResponse
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from ottla.protocol.messages.metadata import MetadataResponse

STATES = {
    ErrorCode.NONE: "online",
    ErrorCode.KAFKA_STORAGE_ERROR: "offline",
    ErrorCode.LOG_DIR_NOT_FOUND: "LOG_DIR_NOT_FOUND",
}


class Cluster:
    """Broker 1 with a directory for each of `STATES`."""

    json = False
    timeout_ms = 1000

    def __init__(self, *_: object) -> None:
        self.client = self

    def metadata(self, _names: object) -> MetadataResponse:
        return MetadataResponse()

    def broker_ids(self) -> list[int]:
        return [1]

    def call(self, kind: type, _request: object, _to: object = None) -> Any:
        if kind is DescribeConfigsResponse:
            return kind()
        assert kind is DescribeLogDirsResponse
        rows = [DescribeLogDirsResult(error_code=code, log_dir=f"/{code}") for code in STATES]
        return kind(results=rows)

    def close(self) -> None:
        """Nothing is open."""


def test_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)
    done = CliRunner().invoke(app, ["log-dirs"])
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[-1] for row in rows] == [*STATES.values()]
    assert (done.exit_code, "a log directory is offline" in done.stderr) == (1, True)
