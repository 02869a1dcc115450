"""Policies as an operator installs them: a module of their own, and clients that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from ottla.testing import Broker

SECONDS = 60.0
MODULE = """
from ottla.policies import ConfigAlteration, PolicyViolation, TopicCreation


class Topics:
    def validate(self, topic: TopicCreation) -> None:
        partitions = topic.num_partitions or len(topic.assignments or {})
        if partitions > 3 or topic.name.startswith("forbidden"):
            raise PolicyViolation(f"{topic.name} has {partitions} partitions")


class Changes:
    def validate(self, change: ConfigAlteration) -> None:
        if "min.insync.replicas" in change.configs:
            raise PolicyViolation(f"{change.resource_type} {change.resource_name}")
"""


def create(admin: AdminClient, topic: NewTopic) -> None:
    for future in admin.create_topics([topic]).values():
        future.result(SECONDS)


def alter(admin: AdminClient, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def test_topics_and_changes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Broker(
        tmp_path / "data",
        num_partitions=2,
        create_topic_policy_class_name="own_policies.Topics",
        alter_config_policy_class_name="own_policies.Changes",
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create(admin, NewTopic("t"))
        for topic, words in (
            (NewTopic("wide", 4), "wide has 4 partitions"),
            (NewTopic("given", 4, replica_assignment=[[1001]] * 4), "given has 4 partitions"),
        ):
            with pytest.raises(KafkaException) as rejected:
                create(admin, topic)
            error = rejected.value.args[0]
            assert (error.code(), error.str()) == (KafkaError.POLICY_VIOLATION, words)
        # A topic is rejected that the first request for it would create, too.
        assert "forbidden" not in broker.server.parts.metadata.snapshot.topics
        (state,) = admin.list_topics("forbidden", SECONDS).topics.values()
        assert state.error is not None
        assert set(admin.list_topics(timeout=SECONDS).topics) == {"t"}
        alter(admin, "retention.ms", "1000")
        with pytest.raises(KafkaException, match="TOPIC t"):
            alter(admin, "min.insync.replicas", "1")
