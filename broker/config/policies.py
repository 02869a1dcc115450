"""Policies of an installation: Python classes that may reject new topics and changed settings.

`create.topic.policy.class.name` and `alter.config.policy.class.name` name them. They are for Ottla
what Java classes with Kafka's CreateTopicPolicy (KIP-108) and AlterConfigPolicy (KIP-133) are for
Kafka, and are asked at the same points: after all other checks, also when a request only validates.
`ottla.policies` has the public names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.python_classes import find_class, load_class
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.config")

CREATE_TOPIC = "create.topic.policy.class.name"
ALTER_CONFIG = "alter.config.policy.class.name"

_INTERFACE = (("validate",), "ottla.policies")


class PolicyViolation(Exception):
    """Raised by `validate` of a policy to reject a request: the client gets POLICY_VIOLATION with
    this message."""


class TopicCreation(NamedTuple):
    """A topic that is about to be created.

    The numbers are those that it gets, also where the request left them to the broker. Where the
    request has `assignments` (replicas by partition), they are None. `configs` are those of the
    request.
    """

    name: str
    num_partitions: int | None
    replication_factor: int | None
    assignments: Mapping[int, Sequence[int]] | None
    configs: Mapping[str, str]


class ConfigAlteration(NamedTuple):
    """Settings of a topic or a broker that are about to change.

    `resource_type` is TOPIC or BROKER; `resource_name` is "" for the settings of all brokers.
    `configs` are those of the request, as it has them; what is deleted is None.
    """

    resource_type: str
    resource_name: str
    configs: Mapping[str, str | None]


class Policies:
    """The policies of one broker. Loop only: a request waits for its policy, and so do others."""

    def __init__(self, config: BrokerConfig) -> None:
        """Loads and configures both. Raises ConfigError when one cannot be used."""
        self._create_topic = _load(
            CREATE_TOPIC, config.create_topic_policy_class_name, config.given
        )
        self._alter_config = _load(
            ALTER_CONFIG, config.alter_config_policy_class_name, config.given
        )

    def admit_topic(self, topic: TopicCreation) -> None:
        """Raises KafkaError when the policy rejects a topic."""
        _ask(CREATE_TOPIC, self._create_topic, topic)

    def admit_change(self, change: ConfigAlteration) -> None:
        """Raises KafkaError when the policy rejects a change."""
        _ask(ALTER_CONFIG, self._alter_config, change)


def check_policies(config: BrokerConfig) -> None:
    """ConfigError when a setting names no class of Python."""
    for setting, name in (
        (CREATE_TOPIC, config.create_topic_policy_class_name),
        (ALTER_CONFIG, config.alter_config_policy_class_name),
    ):
        if name:
            find_class(setting, name, *_INTERFACE)


def _load(
    setting: str, name: str | None, settings: Mapping[str, str]
) -> Callable[[NamedTuple], object] | None:
    if not name:
        return None
    validate: Callable[[NamedTuple], object] = load_class(
        setting, name, *_INTERFACE, settings
    ).validate
    return validate


def _ask(
    setting: str, validate: Callable[[NamedTuple], object] | None, request: NamedTuple
) -> None:
    """A policy that fails rejects the request: it would protect nothing otherwise."""
    if validate is None:
        return
    try:
        validate(request)
    except PolicyViolation as violation:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from None
    except Exception as error:
        logger.exception("The class of %s failed, the request is rejected", setting)
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"The class of {setting} failed"
        ) from error
