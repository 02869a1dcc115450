"""What Kafka 3.9.1 has in KRaft mode only: groups of the new protocol (KIP-848), by the same
conversations; topics page by page; subscriptions to metrics of clients (KIP-714)."""

import difflib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.broker.groups.consumer.records import CURRENT_KEY
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.messages.stored.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tests.differential import consumer_group_scripts as scripts
from tests.differential.asking import Pair
from tests.doubles.apache_kafka_kraft import start_kraft_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript

pytestmark = pytest.mark.kafka

SETTINGS = {
    "auto_create_topics_enable": "false",
    "num_partitions": 2,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "group_coordinator_rebalance_protocols": "classic,consumer",
    "group_consumer_migration_policy": "bidirectional",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with (
        start_kraft_kafka(tmp_path_factory.mktemp("kafka"), **SETTINGS) as kafka,
        start_broker(
            tmp_path_factory.mktemp("ottla"),
            broker_id=0,
            ottla_metrics_address="127.0.0.1:0",  # which is what shows metrics of clients
            **SETTINGS,
        ) as ottla,
    ):
        for bootstrap in (kafka.bootstrap, ottla.bootstrap):
            with Transcript(bootstrap) as transcript:
                scripts.prepare(transcript)
        yield Pair(kafka.bootstrap, ottla.bootstrap)


def records_of(bootstrap: str, group: str, topic_ids: dict[bytes, str]) -> dict[bytes, list[bytes]]:
    """The values of each key of the group in `__consumer_offsets`, but for commits and times."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "absent"})
    home = TopicPartition("__consumer_offsets", 0, 0)
    _, end = consumer.get_watermark_offsets(home, 60)
    consumer.assign([home])
    found: dict[bytes, list[bytes]] = {}
    position = 0
    while position < end - 1:
        for message in consumer.consume(500, 1):
            assert message.error() is None
            position = message.offset()
            key, value = message.key(), message.value() or b"-"
            for topic_id, name in topic_ids.items():
                value = value.replace(topic_id, name.encode().ljust(16))
            if int.from_bytes(key[:2]) in range(3, 9) and group.encode() in key:
                if key[1] == CURRENT_KEY and value != b"-":
                    value = without_epochs(value)
                found.setdefault(key, []).append(value)
    consumer.close()
    return found


def without_epochs(value: bytes) -> bytes:
    """As Kafka 3.9 writes it: the epochs of partitions (KIP-1251) are of Kafka 4.3."""
    message, _ = decoder(ConsumerGroupCurrentMemberAssignmentValue, 0)(value, 2)
    for row in (*message.assigned_partitions, *message.partitions_pending_revocation):
        row.assignment_epochs = []
    encoded: bytes = encoder(ConsumerGroupCurrentMemberAssignmentValue, 0)(message)
    return value[:2] + encoded


def test_records_are_the_same_bytes(prepared: Pair) -> None:
    noted = []
    for bootstrap in (prepared.kafka, prepared.ottla):
        with Transcript(bootstrap) as transcript:
            scripts.learn_topics(transcript)
            scripts.what_is_written_down(transcript)
            noted.append(records_of(bootstrap, scripts.RECORDED, transcript.topic_ids))
    kafka, ottla = noted
    assert len(kafka) > 10
    assert ottla == kafka


@pytest.mark.parametrize("script", scripts.SCRIPTS, ids=lambda script: script.__name__)
def test_conversation(prepared: Pair, script: Callable[[Transcript], None]) -> None:
    noted = []
    for bootstrap in (prepared.kafka, prepared.ottla):
        with Transcript(bootstrap) as transcript:
            scripts.learn_topics(transcript)
            script(transcript)
            noted.append(transcript.lines)
    kafka, ottla = noted
    difference = "\n".join(difflib.unified_diff(kafka, ottla, "kafka", "ottla", lineterm=""))
    assert not difference, f"\n{difference}"


# Names, how many partitions at the most, and where to begin. The names that `prepare` made are
# t (2 partitions), u (1) and wide (6).
PAGES: dict[str, tuple[list[str], int, tuple[str, int] | None]] = {
    "some": (["wide", "t"], 2000, None),
    "twice": (["t", "t"], 2000, None),
    "not there": (["u", "not-there"], 2000, None),
    "bad name": (["bad name"], 2000, None),
    "the first two": (["t", "u", "wide"], 2, None),
    "no more than none": (["t", "u"], 0, None),
    "fewer than none": (["t", "u"], -1, None),
    "from the middle": (["t", "u", "wide"], 3, ("t", 1)),
    "from beyond the end": (["t", "u"], 2000, ("t", 9)),
    "from a name between": (["t", "u"], 2000, ("ta", 0)),
    "from behind all": (["t", "u"], 2000, ("zz", 0)),
    "from below the first": (["t"], 2000, ("t", -1)),
    "from what was not requested": (["u"], 2, ("t", 1)),
}


@pytest.mark.parametrize("case", PAGES)
def test_topics_page_by_page(prepared: Pair, case: str) -> None:
    names, limit, cursor = PAGES[case]
    request = DescribeTopicPartitionsRequest(
        [TopicRequest(name) for name in names],
        limit,
        None if cursor is None else DescribeTopicPartitionsRequestCursor(*cursor),
    )
    prepared.compare(request, [0])


def subscription(name: str, setting: str, value: str | None) -> IncrementalAlterConfigsRequest:
    change = AlterableConfig(name=setting, config_operation=0 if value else 1, value=value)
    resource = AlterConfigsResource(resource_type=16, resource_name=name, configs=[change])
    return IncrementalAlterConfigsRequest(resources=[resource])


def test_subscriptions_to_metrics_of_clients(prepared: Pair) -> None:
    listing = ListConfigResourcesRequest()
    prepared.compare(listing, [0])
    for name, setting, value in (
        ("all", "metrics", "org.apache.kafka.producer."),
        ("all", "interval.ms", "5000"),
        ("bad", "interval.ms", "1"),
        ("bad", "match", "nonsense"),
        ("bad", "no.such", "1"),
        ("", "metrics", "x"),
        ("gone", "metrics", None),
        ("some", "match", "client_id=x"),
    ):
        prepared.compare(subscription(name, setting, value), [1], ignore=["error_message"])
    eventually(
        lambda: all(
            known(response) == {"all", "some"} for response in prepared.responses(listing, 0)
        ),
        "a subscription never arrived",
    )
    # A name gets the rows of Kafka 4.3: those of 3.9 have no defaults and no synonyms.
    asked = DescribeConfigsResource(resource_type=16, resource_name="", configuration_keys=None)
    prepared.compare(DescribeConfigsRequest(resources=[asked]), [4], ignore=["error_message"])
    # The ids of clients and subscriptions are each broker's own choice.
    question = GetTelemetrySubscriptionsRequest(client_instance_id=b"\0" * 16)
    eventually(
        lambda: all(
            isinstance(response, GetTelemetrySubscriptionsResponse)
            and response.push_interval_ms == 5000
            for response in prepared.responses(question, 0)
        ),
        "a subscription is listed and not followed",
    )
    prepared.compare(question, [0], ignore=["client_instance_id", "subscription_id"])
    prepared.compare(
        PushTelemetryRequest(
            client_instance_id=b"\1" * 16, subscription_id=5, compression_type=0, metrics=b""
        ),
        [0],
    )


def known(response: object) -> set[str]:
    assert isinstance(response, ListConfigResourcesResponse)
    return {row.resource_name for row in response.config_resources}
