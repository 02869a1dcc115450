"""Groups of the new protocol (KIP-848): the same conversations with Kafka 3.9.1 in KRaft mode."""

import difflib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.differential import consumer_group_scripts as scripts
from tests.differential.asking import Pair
from tests.doubles.apache_kafka_kraft import start_kraft_kafka
from tests.doubles.broker_process import start_broker
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
        start_broker(tmp_path_factory.mktemp("ottla"), broker_id=0, **SETTINGS) as ottla,
    ):
        for bootstrap in (kafka.bootstrap, ottla.bootstrap):
            with Transcript(bootstrap) as transcript:
                scripts.prepare(transcript)
        yield Pair(kafka.bootstrap, ottla.bootstrap)


def records_of(bootstrap: str, group: str, topic_ids: dict[bytes, str]) -> dict[bytes, list[bytes]]:
    """The values of each key of the group in `__consumer_offsets`, but for commits and times."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
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
                found.setdefault(key, []).append(value)
    consumer.close()
    return found


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
