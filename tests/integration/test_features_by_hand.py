"""Levels of features that somebody has written into the znodes, and that no broker has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.controller.tree import znodes
from ottla.controller.tree.znodes_admin import encode_features, encode_own_levels
from ottla.protocol.errors import ErrorCode
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.raising_producer import level_at
from tests.doubles.zookeeper_process import start_ottla_zookeeper
from tests.integration.test_woken_twin import produce_code

pytestmark = pytest.mark.zookeeper

BY_HAND = {"transaction.version": 9, "kraft.version": 1, "metadata.version": 21}


def test_they_are_named_and_have_no_effect(tmp_path: Path) -> None:
    with start_ottla_zookeeper(tmp_path) as zookeeper:
        client = KazooClient(zookeeper.connect)
        client.start(60)
        client.create(znodes.FEATURE, encode_features(BY_HAND, enabled=True))
        with start_broker(tmp_path, broker_id=1, zookeeper_connect=zookeeper.connect) as broker:
            ottla = CommandLine(broker.bootstrap)
            ottla.done("topics", "create", "t")
            assert produce_code(broker.port) == ErrorCode.NONE
            assert level_at(broker.bootstrap)[0] == 2
            for name in ("kraft.version", "metadata.version"):
                broker.wait_for_log(
                    f"Level {BY_HAND[name]} of feature {name} in /feature has no effect: this "
                    f"broker does not have it, remove it with `ottla features --set {name}=0`"
                )
            broker.wait_for_log("Removing the levels of transaction.version from /feature")
            assert problems(ottla) == {
                f"{name} {BY_HAND[name]} is finalized in /feature, and Kafka 3.9 does not start "
                f"with it: `ottla features --set {name}=0`"
                for name in ("kraft.version", "metadata.version")
            }
            ottla.done("features", "--set", "kraft.version=0", "--set", "metadata.version=0")
            eventually(lambda: problems(ottla) == set(), lambda: problems(ottla))

            client.create(
                znodes.OWN_LEVELS,
                encode_own_levels({"transaction.version": 9}),
                None,
                makepath=True,
            )
            broker.wait_for_log(
                "Feature transaction.version is off: its level in /ottla/features is 9"
            )
            assert produce_code(broker.port) == ErrorCode.NONE
            ottla.done("features", "--set", "transaction.version=2")
            eventually(lambda: level_at(broker.bootstrap)[0] == 2, broker.log)
        client.stop()
        client.close()


def problems(ottla: CommandLine) -> set[str]:
    """What stands in the way to Kafka 4 because of features."""
    checks = json.loads(ottla("migrate", "--to", "kafka-4", "--json").output)["checks"]
    return {
        row["finding"] for row in checks if row["what"] == "features" and row["result"] == "PROBLEM"
    }
