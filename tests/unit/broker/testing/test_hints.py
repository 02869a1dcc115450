"""Arguments and attributes of other tools: each error names the one to use."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.definitions import broker_settings, topic_settings
from ottla.broker.testing import hints
from ottla.broker.testing.embedded import setting_name
from ottla.broker.testing.faults import Fault, Faults
from ottla.broker.testing.shared import SharedFault
from ottla.testing import Broker, Cluster

CLASS: Any = {"Broker": Broker, "Cluster": Cluster}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Broker", {"brokers": 3}, r"Cluster\(brokers=3\)"),
        ("Broker", {"user": "alice"}, r"write users=\{'alice'"),
        ("Broker", {"topics": ["orders"]}, r"call create_topic\('orders'"),
        ("Broker", {"settings": {"num.partitions": 3}}, r"settings are named arguments"),
        ("Broker", {"security_protocol": "SASL_SSL"}, "or both for SASL_SSL"),
        ("Cluster", {"sasl_mechanism": "PLAIN"}, r"client_config\(mechanism="),
        ("Broker", {"schema_registry": True}, "there is no schema registry"),
        ("Broker", {"host": "localhost"}, "`bootstrap` has the address"),
        ("Broker", {"directory": {"num.partitions": 3}}, "settings are named arguments"),
        ("Broker", {"directory": 9092}, r"directory=9092: expected a path; a port is Broker\(port"),
        ("Broker", {"port": "9092"}, r"port='9092': expected an int"),
        ("Broker", {"port": True}, "port=True: expected an int"),
        ("Broker", {"num_partitions": 3, "num.partitions": 4}, "num.partitions is given twice"),
        ("Cluster", {"size": 3}, "write brokers=3"),
        ("Broker", {"NUM_PARTITIONS": 3}, "NUM_PARTITIONS=...: write num_partitions=..."),
        ("Broker", {"KAFKA_NUM_PARTITIONS": 3}, "write num_partitions=..."),
        ("Cluster", {"KAFKA_CFG_NUM_PARTITIONS": 3}, "write num_partitions=..."),
        ("Cluster", {"broker": 3}, "broker=...: write brokers=3"),
        ("Cluster", {"nodes": 3}, "write brokers=3"),
        ("Cluster", {"num_nodes": 3}, "write brokers=3"),
        ("Broker", {"num_nodes": 3}, r"Cluster\(brokers=3\)"),
        ("Cluster", {"port": 9092}, "free ports"),
        ("Cluster", {"directory": "data"}, "keeps its data until it is stopped"),
        ("Cluster", {"brokers": {"num.partitions": 3}}, "settings are named arguments"),
        ("Cluster", {"brokers": True}, "brokers=True: expected an int"),
        ("Cluster", {"num_partitions": 3, "num.partitions": 4}, "num.partitions is given twice"),
    ],
)
def test_an_argument_of_another_tool(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        CLASS[name](**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"directory": "localhost:9092"}, "is not a path: the address is in `bootstrap`"),
        ({"directory": "PLAINTEXT://:9092"}, "is not a path"),
        ({"directory": ""}, "directory='' is not a path"),
        ({"port": 70000}, "port=70000: expected 1 to 65535"),
        ({"port": 9092, "listeners": "PLAINTEXT://127.0.0.1:0"}, "drop the setting listeners"),
        ({"log_dirs": "data"}, r"the directory is the first argument, Broker\('data'\)"),
        ({"log.dir": "data"}, "the directory is the first argument"),
        ({"ssl_client_auth": "required"}, "ssl_client_auth needs tls=True"),
        ({"default_replication_factor": 3}, r"Cluster\(brokers=3\) has several brokers"),
        ({"users": ["alice"]}, r"a dictionary, such as users=\{'alice': 'secret'\}"),
        ({"users": {"alice": None}}, r"password of alice is not text: expected such as users="),
    ],
)
def test_a_value_of_another_shape(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Broker(**arguments)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"broker_id": 7}, "broker.id=7: the ids are 1 to 2$"),
        ({"default_replication_factor": 3}, "2 brokers have at most 2 replicas of a topic"),
        ({"log_dirs": "data"}, "log.dirs: a cluster keeps its data until it is stopped only"),
        ({"log.dir": "data"}, "log.dir: a cluster keeps its data until it is stopped only"),
    ],
)
def test_a_setting_that_a_cluster_chooses(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Cluster(2, **settings)
    Cluster(2, default_replication_factor=2)


@pytest.mark.parametrize("arguments", [{}, {"brokers": 2}])
def test_a_cluster_has_no_directory(arguments: dict[str, int], tmp_path: Path) -> None:
    for directory in ("data", tmp_path):
        with pytest.raises(TypeError, match=r"Cluster\(.*keeps its data until .* write brokers=3"):
            CLASS["Cluster"](directory, **arguments)


@pytest.mark.parametrize(
    ("name", "attribute", "words"),
    [
        ("Broker", "bootstrap_servers", "use bootstrap"),
        ("Broker", "get_bootstrap_server", "use bootstrap"),
        ("Broker", "close", r"use stop\(\)"),
        ("Broker", "kill", r"use crash\(\)"),
        ("Broker", "resume", r"use start\(\)"),
        ("Broker", "produce", r"a client does it, with the settings of client_config\(\)"),
        ("Broker", "create_topics", r"use create_topic\(name\)"),
        ("Cluster", "bootstrap_servers", "use bootstrap"),
        ("Cluster", "close", r"use stop\(\)"),
        ("Cluster", "crash", r"use that of one broker, cluster\[1\]\.crash$"),
        ("Cluster", "faults", r"use that of one broker, cluster\[1\]\.faults$"),
        ("Cluster", "size", r"use len\(cluster\)"),
        ("Broker", "groups", "use the admin client of a library"),
        ("Broker", "lag", "use the admin client of a library"),
        ("Broker", "committed_offset", "use the admin client of a library"),
        ("Broker", "read", "a client does it"),
        ("Broker", "schema_registry_url", "there is no schema registry: .* 'mock://name'"),
        ("Cluster", "controller", r"describe_cluster\(\)"),
        ("Cluster", "isr", r"describe_topics\(\)"),
        ("Cluster", "stop_broker", r"use cluster\[1\]\.pause\(\)"),
        ("Broker", "nonsense", "object has no attribute 'nonsense'$"),
    ],
)
def test_an_attribute_of_another_tool(name: str, attribute: str, words: str) -> None:
    made = CLASS[name]()
    with pytest.raises(AttributeError, match=words):
        getattr(made, attribute)
    assert not hasattr(made, attribute)


def test_topics_and_faults_have_hints_too() -> None:
    broker: Any = Broker()
    faults: Any = Faults.__new__(Faults)
    cluster: Any = Cluster()
    for arguments, words in (
        ({"num_partitions": 3}, "num_partitions=...: write partitions=3"),
        ({"topic": "orders"}, "write name='orders'"),
        ({"replicas": 3}, "write replication_factor=3"),
    ):
        for each in (broker, cluster):
            with pytest.raises(TypeError, match=words):
                each.create_topic(**arguments)
    with pytest.raises(TypeError, match=r"did you mean replication_factor\?"):
        broker.create_topic("orders", replication_facter=3)
    with pytest.raises(TypeError, match=r"the setting retention\.ms is given twice"):
        broker.create_topic("orders", config={"retention.ms": 1}, retention_ms=1)
    with pytest.raises(TypeError, match=r"ms=\.\.\.: write delay_ms=2000"):
        faults.delay("Fetch", ms=5)
    with pytest.raises(TypeError, match=r"count=\.\.\.: write times=2"):
        faults.error("Fetch", "NOT_LEADER_OR_FOLLOWER", count=1)
    with pytest.raises(AttributeError, match=r"use error\(api, code\)"):
        faults.fail("Produce")
    for call, words in (
        (lambda: faults.error("Fetch", "NOT_CONTROLLER", executed=True), r"only drop\(api, ex"),
        (lambda: faults.delay("Fetch", 5, executed=True), r"only drop\(api, executed=True\) and"),
        (lambda: faults.drop("Fetch", delay_ms=5), r"only delay\(api, delay_ms\) has it"),
        (lambda: faults.disconnect("Fetch", code="NOT_CONTROLLER"), "only error"),
        (lambda: broker.restart(5), r"restart\(5\): write restart\(\) or restart\(crash=True\)"),
        (lambda: broker.client_config(libary="java"), r"libary=...: did you mean library\?"),
        (lambda: broker.client_config(username="alice"), "username=...: write user='alice'"),
        (lambda: cluster.client_config(mechansim="PLAIN"), "did you mean mechanism"),
        (lambda: broker.client_config("aiokafka", group_id="x"), r"group_id=\.\.\.: .*beside it"),
        (lambda: broker.end_offset("orders", partitions=0), "partitions=...: write partition=0"),
        (lambda: cluster.end_offset("orders", partitions=0), "partitions=...: write partition=0"),
        (lambda: cluster.leader_of("orders", partitions=0), "partitions=...: write partition=0"),
        (broker.end_offset, r"end_offset\(\) without topic: write end_offset\('orders'\)"),
        (broker.create_topic, r"without name: write create_topic\('orders'\)"),
        (lambda: faults.error("JoinGroup", "NOT_COORDINATOR", group="x"), "applies to all groups"),
        (lambda: faults.error("Produce"), r"without code: write error\('Produce', 'NOT_L"),
        (faults.drop, r"drop\(\) without api: write drop\('Fetch'\)$"),
        (lambda: faults.disconnect(times=1), r"without api: write disconnect\('Fetch'\)$"),
        (lambda: faults.delay("Fetch"), r"without delay_ms: write delay\('Fetch', 2000\)$"),
        (lambda: broker.restart(crahs=True), r"did you mean crash\?"),
        (lambda: broker.restart(timeout=5), "returns when clients are served"),
        (lambda: Fault.__new__(Fault).wait(timeout=1), r"timeout=...: write wait\(2, seconds=5\)"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.parametrize(
    ("name", "words"), [("count", "use hits"), ("clear", r"use remove\(\)"), ("join", "use wait")]
)
def test_an_attribute_of_a_fault_that_other_tools_have(name: str, words: str) -> None:
    for fault in (Fault.__new__(Fault), SharedFault(None, 0)):
        with pytest.raises(AttributeError, match=words):
            getattr(fault, name)


def test_a_hint_hides_neither_a_setting_nor_a_name_of_the_class() -> None:
    settings, topic = broker_settings().keys(), topic_settings().keys()
    assert not {setting_name(name) for name in {**hints.BROKER, **hints.CLUSTER}} & settings
    assert not {setting_name(name) for name in hints.TOPIC} & topic
    for function, table in (
        (Broker.__init__, hints.BROKER),
        (Cluster.__init__, hints.CLUSTER),
        (Broker.create_topic, hints.TOPIC),
        (Cluster.create_topic, hints.TOPIC),
        (Broker.restart, hints.RESTART),
        (Broker.client_config, hints.CLIENT_CONFIG),
        (Fault.wait, hints.WAIT),
        (Broker.end_offset, hints.PARTITION),
        (Cluster.leader_of, hints.PARTITION),
        *((getattr(Faults, each), table) for each, table in hints.FAULT_KINDS.items()),
    ):
        own = inspect.signature(function).parameters.values()
        assert not {each.name for each in own if each.kind != each.VAR_KEYWORD} & table.keys()
    for made, table in (
        (Broker, hints.BROKER_ATTRIBUTES),
        (Cluster, hints.CLUSTER_ATTRIBUTES),
        (Faults, hints.FAULT_ATTRIBUTES),
        (Fault, hints.ONE_FAULT_ATTRIBUTES),
        (SharedFault, hints.ONE_FAULT_ATTRIBUTES),
    ):
        assert not set(dir(made)) & table.keys()


def test_names_of_libraries() -> None:
    with Broker() as broker:
        assert broker.client_config("confluent-kafka") == broker.client_config("confluent")
        for given, meant in (("kafka", "kafka-python"), ("librdkafka", "confluent")):
            with pytest.raises(ValueError, match=f"did you mean {meant}"):
                broker.client_config(given)  # type: ignore[arg-type]


def test_an_unfinished_object_has_no_attributes() -> None:
    """`__getattr__` neither recurses nor answers for a protocol."""
    assert not hasattr(Broker.__new__(Broker), "_server")
    with pytest.raises(TypeError, match=r"pass broker\.bootstrap"):
        pickle.dumps(Broker())
