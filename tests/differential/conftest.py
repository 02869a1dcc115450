"""One Apache Kafka 3.9.1 and one Ottla with the same settings for the whole folder."""

from collections.abc import Iterator

import pytest

from tests.differential.asking import Pair
from tests.differential.guarded import Both, make_users
from tests.differential.jaas_listeners import (
    JAAS_LISTENERS,
    settings_beside_jaas_file,
    write_jaas_file,
)
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.sasl_talk import addresses, sasl_listener

SETTINGS: dict[str, object] = {
    # Kafka 3.9 in ZooKeeper mode has no other.
    "group_coordinator_rebalance_protocols": "classic",
    "group_consumer_migration_policy": "disabled",
    "broker_id": 0,
    # A busy machine may hold up Apache Kafka for longer than its session would last.
    "zookeeper_session_timeout_ms": 60_000,
    "auto_create_topics_enable": "false",
    "num_partitions": 2,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
    # No retention within a run: tests have records of 2023, and the two would look at other times.
    "log_initial_task_delay_ms": 86_400_000,
}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **SETTINGS) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), **SETTINGS) as ottla,
    ):
        yield Pair(kafka.bootstrap, ottla.bootstrap)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    settings = SETTINGS | sasl_listener()
    settings["connection_failed_authentication_delay_ms"] = 10
    settings["delegation_token_secret_key"] = "secret"
    settings["listener_name_clients_scram-sha-512_connections_max_reauth_ms"] = 3_600_000
    settings |= settings_beside_jaas_file(settings)
    options = write_jaas_file(tmp_path_factory.mktemp("jaas"))
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), jvm_options=options, **settings) as kafka,
        start_broker(
            tmp_path_factory.mktemp("ottla"), kafka_opts=" ".join(options), **settings
        ) as ottla,
    ):
        pairs = [Pair(*each) for each in zip(addresses(kafka), addresses(ottla), strict=True)]
        both = Both(pairs[0], pairs[1], dict(zip(JAAS_LISTENERS, pairs[2:], strict=True)))
        make_users(both)
        yield both
