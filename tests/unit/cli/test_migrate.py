"""The findings of `ottla migrate`, from the settings and versions of brokers."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.properties_file import parse_properties
from ottla.cli.migrate import (
    NOTE,
    OK,
    PROBLEM,
    BrokerFacts,
    _check_moves,
    check_brokers,
    check_hidden,
    check_topics,
    check_zookeeper,
    new_settings,
    property_line,
)
from ottla.cli.session import Session
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.registry import API, ApiKey

VERSIONS = {key: (api.min_version, api.max_version) for key, api in API.items() if key < 50}
VERSIONS[ApiKey.ALTER_PARTITION] = (0, 0)  # of Kafka 3.0
VERSION = {"inter.broker.protocol.version": "3.6", "zookeeper.connect": "zk:2181/kafka"}


TIERED = {
    "remote_log_storage_system_enable": "true",
    "remote_log_storage_manager_class_name": "io.aiven.kafka.tieredstorage.RemoteStorageManager",
    "rsm_config_storage_backend_class": "filesystem",
    "rsm_config_storage_root": "/segments",
    "rsm_config_chunk_size": "4194304",
}


def broker(
    broker_id: int = 1,
    versions: dict[int, tuple[int, int]] | None = None,
    **given: str,
) -> BrokerFacts:
    texts = {name.rstrip("_").replace("_", "."): text for name, text in given.items()}
    found = VERSIONS if versions is None else versions
    return BrokerFacts(broker_id, found, {**VERSION, **texts}, texts)


def problems(*brokers: BrokerFacts) -> list[str]:
    return [each.finding for each in check_brokers(list(brokers)) if each.result == PROBLEM]


def test_no_problem_is_found() -> None:
    own = broker(num_io_threads="3", log_dirs="/x", listeners="SASL_SSL://:9093", broker_id_="7")
    assert problems(own, broker(2)) == []
    assert {each.result for each in check_brokers([own])} == {OK}


def test_listeners_with_names_are_no_problem() -> None:
    facts = [
        broker(
            broker_id,
            listeners=f"CLIENTS://kafka-{broker_id}:9092,BROKERS://kafka-{broker_id}:9093",
            advertised_listeners=f"CLIENTS://kafka-{broker_id}:9092",
            listener_security_protocol_map=f"CLIENTS:PLAINTEXT,{more}BROKERS:PLAINTEXT",
            inter_broker_listener_name="BROKERS",
        )
        for broker_id, more in ((1, ""), (2, "OLD:PLAINTEXT,"))
    ]
    assert problems(*facts) == []
    settings = new_settings(facts)
    assert settings["listeners"] == "CLIENTS://:9092,BROKERS://:9093"
    assert settings["listener.security.protocol.map"] == "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"
    assert settings["inter.broker.listener.name"] == "BROKERS"
    BrokerConfig(settings)
    by_protocol = broker(listeners="SSL://:9093", security_inter_broker_protocol="SSL")
    assert problems(by_protocol) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (broker(versions={**VERSIONS, 55: (0, 1)}), "runs without ZooKeeper (KRaft)"),
        (broker(versions={ApiKey.FETCH: (0, 17)}), "runs without ZooKeeper (KRaft)"),
        (broker(versions={**VERSIONS, 1: (20, 21)}), "Fetch: it has versions 20 to 21"),
        (
            broker(versions={key: both for key, both in VERSIONS.items() if key != 56}),
            "AlterPartition: it does not have this request",  # Kafka 2.6
        ),
        (broker(create_topic_policy_class_name="com.x.Policy"), "com.x.Policy is a Java class"),
        (broker(remote_log_storage_system_enable="true"), "has tiered storage that Ottla cannot"),
        (
            broker(**TIERED | {"remote_log_storage_manager_class_name": "com.x.Storage"}),
            "com.x.Storage: Java classes cannot be loaded",
        ),
        (
            broker(**TIERED, rsm_config_encryption_enabled="true"),
            "encryption is not supported",
        ),
        (
            broker(**TIERED | {"remote_log_metadata_manager_class_name": "com.x.Metadata"}),
            "com.x.Metadata: Java classes cannot be loaded",
        ),
        (broker(zookeeper_metadata_migration_enable="true"), "migrates to KRaft"),
        (broker(authorizer_class_name="com.x.Authorizer"), "has a setting that Ottla rejects"),
    ],
)
def test_problems_are_found(facts: BrokerFacts, words: str) -> None:
    (problem,) = problems(facts)
    assert words in problem


def test_tiered_storage_of_the_plugin_is_carried_over() -> None:
    facts = broker(**TIERED)
    (note,) = [each for each in check_brokers([facts]) if each.result == NOTE]
    assert "__remote_log_metadata" in note.finding
    assert "copy these settings" not in note.finding
    assert problems(facts) == []
    secret = "rsm.config.storage.root"
    hidden = facts._replace(hidden=frozenset({secret}))
    (note,) = [each for each in check_brokers([hidden]) if each.result == NOTE]
    assert "copy these settings" in note.finding


def test_an_upgrade_in_progress() -> None:
    older = BrokerFacts(2, VERSIONS, {"inter.broker.protocol.version": "3.5"}, {})
    assert problems(broker(), older) == [
        "inter.broker.protocol.version differs (3.5, 3.6): finish that upgrade first"
    ]


def test_offline_and_under_replicated_partitions() -> None:
    def cluster(leader: int, isr: list[int]) -> MetadataResponse:
        row = MetadataResponsePartition(0, 0, leader, 0, [1, 2], isr)
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[row])])

    assert [each.result for each in check_topics(cluster(1, [1, 2]))] == [OK]
    (finding,) = check_topics(cluster(1, [1]))
    assert finding.finding.startswith("1 partition(s) miss in-sync replicas")
    assert [each.result for each in check_topics(cluster(-1, []))] == [PROBLEM, PROBLEM]


def test_reassignments_that_the_user_may_not_list_are_not_known() -> None:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response = ListPartitionReassignmentsResponse(error_code=code, error_message=None)
    session = SimpleNamespace(call=lambda *_: response)
    (finding,) = _check_moves(cast(Session, session))
    assert (finding.result, "CLUSTER_AUTHORIZATION_FAILED" in finding.finding) == (NOTE, True)


def test_whether_zookeeper_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert check_zookeeper(f"127.0.0.1:1,{address}/kafka").result == OK
    finding = check_zookeeper("127.0.0.1:1,nonsense")
    assert (finding.result, "nonsense: " in finding.finding) == (NOTE, True)


def test_the_settings_of_a_new_broker() -> None:
    found = new_settings(
        [
            broker(
                3, listeners="A://10.0.0.1:9092,B://[::1]:9093", log_dirs="/a", num_partitions="6"
            ),
            broker(7, listeners="A://x:1", log_dirs="/b", num_partitions="6", broker_rack="r"),
        ]
    )
    assert found == {
        "broker.id": "8",
        "listeners": "A://:9092,B://:9093",
        "log.dirs": "/var/lib/ottla",
        "inter.broker.protocol.version": "3.6",
        "zookeeper.connect": "zk:2181/kafka",
        "num.partitions": "6",
    }
    assert new_settings([]) == {}


@pytest.mark.parametrize("value", [r"RULE:^CN=(\w+)\.example$/$1/L", "a=b:c", "two\nlines\r", ""])
def test_settings_are_printed_as_a_file_has_them(value: str) -> None:
    (found,) = parse_properties(property_line("ssl.principal.mapping.rules", value), "file")
    assert found[:2] == ("ssl.principal.mapping.rules", value)


def test_hidden_settings_are_listed_for_copying() -> None:
    silent = broker()._replace(hidden=frozenset({"super.users", "listeners"}))
    (note,) = check_hidden([broker(2), silent])
    assert note[:2] == (NOTE, "super.users")
    assert "copy it" in note.finding
    assert check_hidden([broker()]) == []
