"""Settings by API: describing, altering, and every way to get it wrong."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.protocol.messages.alter_configs import AlterableConfig as OldAlterableConfig
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.differential.asking import DIFFERENT, Pair, differences, plain
from tests.differential.conftest import SETTINGS
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.kafka

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def topic(pair: Pair) -> str:
    name = f"settings-{uuid.uuid4().hex[:8]}"
    made = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
        timeout_ms=10_000,
    )
    pair.compare(made, [4])
    return name


def describe(
    kind: int, name: str, keys: list[str] | None = None
) -> Callable[[int], DescribeConfigsRequest]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return lambda version: DescribeConfigsRequest(
        resources=[resource], include_synonyms=version >= 1, include_documentation=False
    )


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    configs = [
        AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def test_describe_topic(pair: Pair, topic: str) -> None:
    pair.compare(describe(TOPIC, topic), range(5))
    pair.compare(describe(TOPIC, topic, ["retention.ms", "no.such"]), range(5))


def test_describe_broker_names_types_and_defaults(pair: Pair) -> None:
    known = [
        "num.partitions",
        "log.retention.hours",
        "auto.create.topics.enable",
        "compression.type",
    ]
    pair.compare(describe(BROKER, "0", known), range(5))


@pytest.mark.parametrize(("kind", "version"), [(BROKER, 3), (BROKER, 4), (TOPIC, 4)])
def test_documentation(pair: Pair, topic: str, kind: int, version: int) -> None:
    """A text where Kafka has one; the words are Ottla's own."""
    resource = DescribeConfigsResource(kind, "0" if kind == BROKER else topic, None)
    request = DescribeConfigsRequest([resource], include_documentation=True)
    kafka, ottla = (
        {row.name: row.documentation for row in response.results[0].configs}
        for response in pair.responses(request, version)
        if isinstance(response, DescribeConfigsResponse)
    )
    assert sum(bool(text) for text in kafka.values()) > 25
    assert not [name for name, text in kafka.items() if text and not ottla[name]]


# Where this folder's two brokers were given other values, or defaults differ on purpose (the page
# of settings says why).
OF_ITS_OWN = frozenset(
    ("controlled.shutdown.enable", "group.initial.rebalance.delay.ms", "listeners", "log.dir")
    + ("log.cleaner.dedupe.buffer.size", "log.dirs", "num.io.threads", "num.network.threads")
    + ("zookeeper.connect",)
    + ("group.consumer.migration.policy", "group.coordinator.rebalance.protocols")
)


@pytest.mark.parametrize("version", range(5))
def test_every_setting_of_a_broker(pair: Pair, version: int) -> None:
    """Name, value, type, source, synonyms, read-only, sensitive: more than three hundred rows."""
    kafka, ottla = (
        {row.name: row for row in response.results[0].configs}
        for response in pair.responses(describe(BROKER, "0")(version), version)
        if isinstance(response, DescribeConfigsResponse)
    )
    assert len(kafka) > 300
    assert kafka.keys() <= ottla.keys()
    found = [
        f"{name}{line}"
        for name in sorted(kafka.keys() - OF_ITS_OWN)
        for line in differences(plain(kafka[name], DIFFERENT), plain(ottla[name], DIFFERENT))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TOPIC, "not-there"),
        (TOPIC, ""),
        (TOPIC, "bad name"),
        (BROKER, "9"),
        (BROKER, "x"),
        (99, "a"),
    ],
)
def test_describe_what_is_not_there(pair: Pair, kind: int, name: str) -> None:
    pair.compare(describe(kind, name), range(5), ignore=["error_message", "configs"])


# An unknown operation is left out: Kafka fails on it with UNKNOWN_SERVER_ERROR, we refuse it.
CHANGES = {
    "set": [("retention.ms", SET, "1000")],
    "delete": [("retention.ms", DELETE, None)],
    "append": [("cleanup.policy", APPEND, "compact")],
    "subtract": [("cleanup.policy", SUBTRACT, "delete")],
    "append to a number": [("retention.ms", APPEND, "1")],
    "unknown": [("no.such.setting", SET, "1")],
    "ill-typed": [("retention.ms", SET, "soon")],
    "out of range": [("segment.bytes", SET, "1")],
    "twice": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
    "null": [("retention.ms", SET, None)],
    "bad choice": [("cleanup.policy", SET, "burn")],
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("version", [0, 1])
def test_incremental_change_of_a_topic(pair: Pair, topic: str, case: str, version: int) -> None:
    pair.compare(change(TOPIC, topic, *CHANGES[case]), [version], ignore=["error_message"])
    pair.compare(describe(TOPIC, topic), [4])


@pytest.mark.parametrize("version", range(3))
def test_full_change_of_a_topic(pair: Pair, topic: str, version: int) -> None:
    for configs in ({"retention.ms": "1000"}, {"segment.ms": "60000"}, {"no.such": "1"}):
        resource = AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[OldAlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        request = AlterConfigsRequest(resources=[resource], validate_only=False)
        pair.compare(request, [version], ignore=["error_message"])
        pair.compare(describe(TOPIC, topic), [4])


def test_change_of_what_is_not_there(pair: Pair) -> None:
    for name in ("not-there", "bad name", ""):
        request = change(TOPIC, name, ("retention.ms", SET, "1"))
        pair.compare(request, [0, 1], ignore=["error_message"])


def test_change_of_a_broker(pair: Pair) -> None:
    for changes in (
        [("log.cleaner.threads", SET, "2")],
        [("broker.id", SET, "7")],
        [("message.max.bytes", SET, "2000000")],
    ):
        pair.compare(change(BROKER, "0", *changes), [1], ignore=["error_message"])
    keys = ["message.max.bytes", "log.cleaner.threads"]
    # Both brokers hear of the change by a notification, a moment after the response.
    eventually(
        lambda: all(
            isinstance(response, DescribeConfigsResponse)
            and {row.value for row in response.results[0].configs} == {"2", "2000000"}
            for response in pair.responses(describe(BROKER, "0", keys)(4), 4)
        ),
        "the change never arrived",
    )
    pair.compare(describe(BROKER, "0", keys), [4])
    pair.compare(change(BROKER, "0", ("message.max.bytes", DELETE, None)), [1])
    pair.compare(change(BROKER, "0", ("log.cleaner.threads", DELETE, None)), [1])


def test_unknown_settings_that_ottla_ignores(pair: Pair, tmp_path: Path) -> None:
    """As in Kafka they are stored, and described as if they held a secret."""
    key = "plugin.of.a.user"
    with start_broker(tmp_path, ("--ignore-unknown", "plugin."), **SETTINGS) as ottla:
        both = Pair(pair.kafka, ottla.bootstrap)
        for name in ("0", ""):
            both.compare(change(BROKER, name, (key, SET, "1")), range(2))
            eventually(
                lambda name=name: all(
                    isinstance(response, DescribeConfigsResponse) and response.results[0].configs
                    for response in both.responses(describe(BROKER, name, [key])(4), 4)
                ),
                "the change never arrived",
            )
            both.compare(describe(BROKER, name, [key]), range(5))
            both.compare(change(BROKER, name, (key, DELETE, None)), [1])


def test_describe_cluster(pair: Pair) -> None:
    pair.compare(DescribeClusterRequest(), [0, 1])
    pair.compare(DescribeClusterRequest(include_cluster_authorized_operations=True), [0, 1])


def test_describe_log_dirs(pair: Pair, topic: str) -> None:
    request = DescribeLogDirsRequest(topics=[])
    pair.compare(
        request, range(5), ignore=["log_dir", "total_bytes", "usable_bytes", "partition_size"]
    )


@pytest.mark.parametrize("kind", [0, 1])
def test_elect_leaders(pair: Pair, topic: str, kind: int) -> None:
    for name, numbers in ((topic, [0]), (topic, [5]), ("not-there", [0])):
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=[TopicPartitions(topic=name, partitions=numbers)],
            timeout_ms=5000,
        )
        pair.compare(request, range(1 if kind else 0, 3), ignore=["error_message"])


def test_init_producer_id(pair: Pair) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    # Kafka's first response may be that it has no block of ids yet.
    for _ in range(100):
        kafka, _ottla = pair.responses(request, 0)
        if isinstance(kafka, InitProducerIdResponse) and kafka.error_code == 0:
            break
    pair.compare(request, range(6))
