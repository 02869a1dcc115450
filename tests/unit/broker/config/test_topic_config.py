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
