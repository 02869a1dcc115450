"""Changed settings reach the logs. Single settings are tested with whole brokers."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server.config_changes import ConfigChanges
from tests.doubles.eventually import eventually_async
from tests.doubles.pace import steps_per_turn

LOGS = 500


class OneLog:
    def __init__(self, number: int) -> None:
        self.topic = f"t{number}"
        self.config: object = "old"

    def update_config(self, config: object) -> None:
        self.config = config


async def test_changed_settings_reach_thousands_of_logs_in_turns() -> None:
    logs = [OneLog(each) for each in range(LOGS)]
    version = ["first"]
    parts = MagicMock(
        config=BrokerConfig({}),
        logs=MagicMock(logs=lambda: logs),
        dynamic_config=MagicMock(log_config=lambda topic: f"{topic}: {version[0]}"),
    )
    changes = ConfigChanges(parts)
    with steps_per_turn(40):
        changes.broker_changed(["log.retention.ms"])
        assert sum(each.config != "old" for each in logs) == 40
        assert not parts.remote_logs.settings_changed.called
        await asyncio.sleep(0)
        version[0] = "second"
        changes.broker_changed(["log.retention.ms"])
        await eventually_async(lambda: parts.remote_logs.settings_changed.call_count == 2)
    assert [each.config for each in logs] == [f"t{each}: second" for each in range(LOGS)]


@pytest.mark.parametrize(("value", "is_enabled"), [("true", True), (" True ", True), ("no", False)])
async def test_unclean_election_of_a_topic_is_enabled_however_it_is_written(
    value: str, is_enabled: bool
) -> None:
    overrides = {"unclean.leader.election.enable": value}
    parts = MagicMock(
        logs=MagicMock(logs=list), dynamic_config=MagicMock(topic_overrides=lambda _: overrides)
    )
    ConfigChanges(parts).topic_changed("t")
    assert parts.controller.enable_topic_unclean_leader_election.called is is_enabled
