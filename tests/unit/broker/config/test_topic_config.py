from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.topic_config import validate_topic_config
from ottla.protocol.errors import ErrorCode, KafkaError

DEFAULTS = BrokerConfig().topic_defaults()


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"retention.ms": "-1", "cleanup.policy": "compact,delete"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        {"compression.type": "zstd", "compression.zstd.level": "19"},
    ],
)
def test_what_may_be(overrides: dict[str, str]) -> None:
    validate_topic_config(overrides, DEFAULTS)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retention.mss": "1"}, r"Unknown topic config name: retention\.mss \(did you mean"),
        ({"no.such": "1"}, r"Unknown topic config name: no\.such$"),
        ({"retention.ms": "soon"}, r"retention\.ms"),
        ({"segment.bytes": "1"}, r"segment\.bytes"),
        ({"cleanup.policy": "keep"}, r"cleanup\.policy"),
        ({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, r"\(6\) > max.*\(5\)"),
        ({"remote.storage.enable": "true"}, "Tiered Storage"),
    ],
)
def test_what_may_not_be(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        validate_topic_config(overrides, DEFAULTS)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


REMOTE = {"remote.storage.enable": "true"}
ZOOKEEPER = "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable`"


@pytest.mark.parametrize(
    "overrides",
    [
        {"local.retention.ms": "1000", "local.retention.bytes": "1000"},
        {"retention.ms": "10", "local.retention.ms": "10"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.bytes": "5", "local.retention.bytes": "-2"},
    ],
)
def test_remote_storage(overrides: dict[str, str]) -> None:
    validate_topic_config({**REMOTE, **overrides}, DEFAULTS, has_remote_storage=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"cleanup.policy": "compact"}, "Remote log storage is unsupported for the compacted topi"),
        ({"cleanup.policy": "delete,compact"}, "unsupported for the compacted topics"),
        (
            {"retention.ms": "10", "local.retention.ms": "11"},
            r"Invalid value 11 for configuration local\.retention\.ms: Value must not be more than "
            "retention.ms property value: 10$",
        ),
        (
            {"retention.bytes": "10", "local.retention.bytes": "-1"},
            r"Invalid value -1 for configuration local\.retention\.bytes: Value must not be -1 as "
            "retention.bytes value is set as 10.$",
        ),
        ({"remote.log.copy.disable": "true"}, ZOOKEEPER),
        ({"remote.log.delete.on.disable": "true", "remote.storage.enable": "false"}, ZOOKEEPER),
    ],
)
def test_what_remote_storage_excludes(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        validate_topic_config({**REMOTE, **overrides}, DEFAULTS, has_remote_storage=True)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("wanted", [{}, {"remote.storage.enable": "false"}])
def test_remote_storage_cannot_be_disabled(wanted: dict[str, str]) -> None:
    with pytest.raises(KafkaError, match="It is invalid to disable remote storage without"):
        validate_topic_config(wanted, DEFAULTS, has_remote_storage=True, present=REMOTE)
