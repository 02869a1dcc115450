"""The settings of the remote log metadata: Kafka's names, defaults and limits."""

from __future__ import annotations

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.remote.metadata_settings import RemoteLogMetadataSettings


def test_defaults_are_those_of_kafka() -> None:
    settings = RemoteLogMetadataSettings.parse({"unknown": "1"})
    assert settings == RemoteLogMetadataSettings(3, 50, -1, 120_000, 120_000, 100)


def test_every_setting_has_its_name() -> None:
    prefix = "remote.log.metadata."
    names = (
        *("topic.replication.factor", "topic.num.partitions", "topic.retention.ms"),
        *("consume.wait.ms", "initialization.retry.max.timeout.ms"),
        "initialization.retry.interval.ms",
    )
    values = {prefix + name: str(number) for number, name in enumerate(names, 1)}
    assert RemoteLogMetadataSettings.parse(values) == RemoteLogMetadataSettings(1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic.replication.factor", "0"),
        ("topic.num.partitions", "0"),
        ("topic.retention.ms", "0"),
        ("topic.retention.ms", "-2"),
        ("consume.wait.ms", "-1"),
        ("consume.wait.ms", "soon"),
    ],
)
def test_what_kafka_refuses_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"remote.log.metadata.{name}"):
        RemoteLogMetadataSettings.parse({f"remote.log.metadata.{name}": value})
