"""The end of the process of a broker: exit code and last line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.observability.logs import LineFormatter
from ottla.broker.server.process import BrokerProcess


async def test_the_reason_of_a_failure_is_the_last_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = BrokerConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    process = BrokerProcess(config, LineFormatter(as_json=False))
    reason = "the failure of all log directories"
    code = await process.run(lambda _: process.stop(reason), lambda *_: None)
    assert code == 1
    assert caplog.records[-1].getMessage() == f"stopped because of {reason}"
    assert caplog.records[-1].levelno == logging.ERROR
