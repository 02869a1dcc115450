from __future__ import annotations

import logging

import pytest

from ottla.broker.replication.refusal_log import RefusalLog


def test_one_line_in_an_interval_for_each_partition_and_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ottla.replication")
    now_ms = 50_000
    log = RefusalLog(lambda: now_ms)
    for _ in range(3):
        log.log("t", 0, 2, ValueError("corrupt"))
    log.log("t", 1, 2, ValueError("corrupt"))
    log.log("t", 0, 10, ValueError("too large"))
    assert [record.getMessage() for record in caplog.records] == [
        "Append to partition t-0 refused: corrupt",
        "Append to partition t-1 refused: corrupt",
        "Append to partition t-0 refused: too large",
    ]
    now_ms += 10_000
    log.log("t", 0, 2, ValueError("corrupt"))
    assert len(caplog.records) == 4


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.replication")
    log = RefusalLog(lambda: 50_000)
    for index in range(1_001):
        log.log("t", index, 2, ValueError("corrupt"))
    log.log("t", 0, 2, ValueError("corrupt"))
    assert len(caplog.records) == 1_002
