"""Policies of an installation: which classes can be loaded, and what their responses become."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.policies import ALTER_CONFIG, CREATE_TOPIC, Policies
from ottla.policies import ConfigAlteration, PolicyViolation, TopicCreation
from ottla.protocol.errors import ErrorCode, KafkaError

TOPIC = TopicCreation("t", 3, 2, None, {"retention.ms": "1"})


class Limited:
    """At most as many partitions as a setting of the broker permits."""

    def configure(self, settings: Mapping[str, str]) -> None:
        self._most = int(settings["num.partitions"])

    def validate(self, topic: TopicCreation) -> None:
        assert topic.num_partitions is not None
        if topic.num_partitions > self._most:
            raise PolicyViolation(f"{topic.name}: at most {self._most} partitions")


class Failing:
    def validate(self, request: object) -> None:
        raise OSError("no reply")


class WithoutMethod:
    pass


class NotConfigurable(Limited):
    def configure(self, settings: Mapping[str, str]) -> None:
        raise KeyError("limit")


def named(cls: type) -> str:
    return f"{__name__}.{cls.__name__}"


def policies(**given: str) -> Policies:
    return Policies(BrokerConfig({name.replace("_", "."): text for name, text in given.items()}))


def test_without_a_policy_all_is_admitted() -> None:
    policies().admit_topic(TOPIC)
    policies().admit_change(ConfigAlteration("TOPIC", "t", {"retention.ms": None}))


def test_a_topic_is_rejected_with_the_words_of_the_policy() -> None:
    limited = policies(create_topic_policy_class_name=named(Limited), num_partitions="2")
    limited.admit_topic(TOPIC._replace(num_partitions=2))
    with pytest.raises(KafkaError, match="t: at most 2 partitions") as rejected:
        limited.admit_topic(TOPIC)
    assert rejected.value.code == ErrorCode.POLICY_VIOLATION
    limited.admit_change(ConfigAlteration("BROKER", "", {}))  # the other setting is not set


def test_a_policy_that_fails_rejects(caplog: pytest.LogCaptureFixture) -> None:
    failing = policies(alter_config_policy_class_name=named(Failing))
    with caplog.at_level(logging.ERROR), pytest.raises(KafkaError) as rejected:
        failing.admit_change(ConfigAlteration("TOPIC", "t", {}))
    assert rejected.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "no reply" not in str(rejected.value)
    assert "no reply" in caplog.text


@pytest.mark.parametrize("setting", [CREATE_TOPIC, ALTER_CONFIG])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("com.acme.Policy", "no Python class that can be imported here .*Java classes cannot be"),
        ("Policy", "no class with a method validate"),
        (f"{__name__}.Missing", "no Python class that can be imported here .*Missing"),
        (f"{__name__}.named", "no class with a method validate"),
        (named(WithoutMethod), "no class with a method validate"),
    ],
)
def test_what_is_no_policy_stops_the_start(setting: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: {name} is {words}"):
        BrokerConfig({setting: name})


def test_a_policy_that_cannot_be_configured_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"NotConfigurable cannot be used: KeyError\('limit'\)"):
        policies(create_topic_policy_class_name=named(NotConfigurable))
