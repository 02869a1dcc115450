"""Znodes of topic settings as other tools write them: without a version, or of a newer one.

Kafka reads no version, and writes version 1 with its next change. Ottla does so where there is no
version, and does not replace what another version may say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine

pytestmark = pytest.mark.kafka

WRITTEN = {
    "without-version": {"config": {"retention.ms": "86400000", "cleanup.policy": "compact"}},
    "without-config": {"version": 1},
    "empty-object": {},
    "newer": {"version": 2, "config": {"retention.ms": "86400000"}},
}
CHANGED = {"version": 1, "config": {"max.message.bytes": "2000"}}
WITH_OTHERS = {
    "version": 1,
    "config": {
        "retention.ms": "86400000",
        "cleanup.policy": "compact",
        "max.message.bytes": "2000",
    },
}


def story(zookeeper: str, start: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """Create topics, write their settings, change one of each; returns the znodes afterwards."""
    with start() as broker:
        tree = KazooClient(zookeeper)
        tree.start(60)
        try:
            command = CommandLine(broker.bootstrap)
            for topic, written in WRITTEN.items():
                command.done("topics", "create", topic)
                tree.set(f"/config/topics/{topic}", json.dumps(written).encode())
                command("configs", "set", "topic", topic, "max.message.bytes=2000")
            return {topic: json.loads(tree.get(f"/config/topics/{topic}")[0]) for topic in WRITTEN}
        finally:
            tree.stop()
            tree.close()


def test_a_change_keeps_settings_without_a_version(tmp_path: Path) -> None:
    with start_zookeeper(tmp_path) as zookeeper:
        kafka = story(
            f"{zookeeper}/kafka",
            lambda: start_kafka(tmp_path / "kafka", zookeeper=f"{zookeeper}/kafka"),
        )
        ottla = story(
            f"{zookeeper}/ottla",
            lambda: start_broker(tmp_path, zookeeper_connect=f"{zookeeper}/ottla"),
        )
    assert kafka == {
        "without-version": WITH_OTHERS,
        "without-config": CHANGED,
        "empty-object": CHANGED,
        "newer": {
            "version": 1,
            "config": {"retention.ms": "86400000", "max.message.bytes": "2000"},
        },
    }
    assert ottla == {**kafka, "newer": WRITTEN["newer"]}
