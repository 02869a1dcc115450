"""What a forked process sets before its broker starts."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.workers import WorkerPlace, worker_settings
from ottla.broker.observability.logs import LineFormatter
from ottla.broker.workers import worker


def ended(main: Coroutine[object, object, int]) -> int:
    main.close()
    return 0


@pytest.mark.parametrize("as_json", [False, True])
def test_every_line_names_the_worker(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the security log, which has a form of its own."""
    monkeypatch.setattr(LineFormatter, "worker", None)
    monkeypatch.setattr(worker, "run_process", ended)
    base = BrokerConfig({"ottla.workers": "2", "log.dirs": str(tmp_path)})
    place = WorkerPlace(1, 2, "here", str(tmp_path), {}, None)
    log, security = (LineFormatter(as_json=each) for each in (False, as_json))
    config = base.for_worker(worker_settings(base, 1), place)
    assert worker.run_worker(config, log, (), {}) == 0
    record = logging.makeLogRecord({"msg": "logged in", "name": "ottla.audit", "levelname": "INFO"})
    assert "[worker 1] ottla.audit" in log.format(record)
    expected = '"worker": 1' if as_json else "[worker 1] ottla.audit"
    assert expected in security.format(record).replace('":1', '": 1')
