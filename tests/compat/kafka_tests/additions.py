"""What only Ottla has, hidden: some of Kafka's tests count the settings or the APIs of a broker."""

from __future__ import annotations

from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
from ottla.broker.handlers.metadata.api_versions import ApiVersionsHandler
from ottla.protocol.messages.api_versions import ApiVersion
from ottla.protocol.registry import ApiKey

_NEWER_THAN_3_9 = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)

#: With this variable a run hides them (`--without-additions`).
VARIABLE = "KAFKA_TESTS_WITHOUT_ADDITIONS"


def hide_additions() -> None:
    """Hides the settings `ottla.*` from DescribeConfigs; from ApiVersions DescribeTopicPartitions,
    which Kafka lists in KRaft mode only, and versions that came with Kafka 4."""
    all_names = ConfigDescriber._broker_names

    def names_of_kafka(describer: ConfigDescriber) -> list[str]:
        return [name for name in all_names(describer) if not name.startswith("ottla.")]

    ConfigDescriber._broker_names = names_of_kafka  # type: ignore[method-assign]
    build = ApiVersionsHandler.__init__

    def build_without(handler: ApiVersionsHandler, *arguments: object) -> None:
        build(handler, *arguments)  # type: ignore[arg-type]
        handler._versions = [
            ApiVersion(each.api_key, each.min_version, min(each.max_version, _newest(each.api_key)))
            for each in handler._versions
            if each.api_key != ApiKey.DESCRIBE_TOPIC_PARTITIONS
        ]

    ApiVersionsHandler.__init__ = build_without  # type: ignore[method-assign, assignment]


def _newest(api_key: int) -> int:
    """The newest version that is shown."""
    return 0 if api_key in _NEWER_THAN_3_9 else 1000
