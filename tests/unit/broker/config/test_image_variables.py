"""Variables of Kafka's usual images: they work, or stop the start with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config import image_variables
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.image_variables import derived_listeners

IMAGE = {"OTTLA_IMAGE_LISTENERS": "PLAINTEXT://0.0.0.0:9092", "KAFKA_LOG_DIRS": "/var/lib/ottla"}
#: As in the compose files of Confluent's and Apache Kafka's documents.
ADVERTISED = {
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:29092, PLAINTEXT_HOST://localhost:9092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
}


def load(environment: dict[str, str], *overrides: str, path: Path | None = None) -> BrokerConfig:
    return BrokerConfig.load(None if path is None else str(path), overrides, environment)


def bound(config: BrokerConfig) -> list[str]:
    return [str(each) for each in config.listener_endpoints()]


def error_of(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(environment)
    return str(caught.value)


def test_settings_of_bitnamis_image() -> None:
    config = load(
        {
            **IMAGE,
            "KAFKA_CFG_ZOOKEEPER_CONNECT": "zookeeper:2181",
            "KAFKA_CFG_LOG_DIRS": "/bitnami/kafka/data",
            "KAFKA_CFG_LISTENERS": "PLAINTEXT://:9093",
            "KAFKA_CFG_AUTO_CREATE_TOPICS_ENABLE": "false",
            "KAFKA_CFG_ZOOKEEPER_CLIENTCNXNSOCKET": "",
            "ALLOW_PLAINTEXT_LISTENER": "yes",
        }
    )
    assert config.zookeeper_connect == "zookeeper:2181"
    assert config.log_directories() == ["/bitnami/kafka/data"]
    assert bound(config) == ["PLAINTEXT://:9093"]
    assert not config.auto_create_topics_enable


def test_an_error_names_the_variable_that_was_set() -> None:
    assert error_of({"KAFKA_CFG_NUM_PARTITIONS": "many"}).startswith(
        "environment variable KAFKA_CFG_NUM_PARTITIONS: Invalid value many"
    )


def test_an_unknown_variable_of_bitnamis_image_is_a_warning() -> None:
    (warning,) = load({"KAFKA_CFG_NUM_PARTITONS": "3"}).warnings
    assert "KAFKA_CFG_NUM_PARTITONS names no setting" in warning
    assert "Did you mean num.partitions?" in warning


def test_listeners_are_derived_from_the_advertised_ones() -> None:
    assert bound(load({**IMAGE, **ADVERTISED})) == [
        "PLAINTEXT://:29092",
        "PLAINTEXT_HOST://:9092",
    ]


def test_listeners_that_are_set_are_not_derived(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=PLAINTEXT://:1,PLAINTEXT_HOST://:2\n")
    wanted = ["PLAINTEXT://:1", "PLAINTEXT_HOST://:2"]
    text = ",".join(wanted)
    assert bound(load({**IMAGE, **ADVERTISED}, path=path)) == wanted
    assert bound(load({**IMAGE, **ADVERTISED}, f"listeners={text}")) == wanted
    assert bound(load({**IMAGE, **ADVERTISED, "KAFKA_LISTENERS": text})) == wanted
    assert bound(load({**IMAGE, **ADVERTISED, "OTTLA_LISTENERS": text})) == wanted


def test_a_file_overrides_the_listeners_of_the_image_and_not_its_data(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=PLAINTEXT://:9093\nlog.dirs=/tmp/kafka-logs\n")
    config = load(IMAGE, path=path)
    assert bound(config) == ["PLAINTEXT://:9093"]
    assert config.log_directories() == ["/var/lib/ottla"]
    path.write_text("zookeeper.connect=zk:2181\n")
    assert bound(load(IMAGE, path=path)) == ["PLAINTEXT://0.0.0.0:9092"]


@pytest.mark.parametrize(
    ("advertised", "everywhere", "listeners"),
    [
        ("A://host:1", False, "A://:1"),
        ("A://localhost:1,B://127.0.0.1:2,C://[::1]:3", False, "A|B|C://127.0.0.1"),
        ("A://localhost:1", True, "A://:1"),
        ("A://[2001:db8::1]:1", False, "A://:1"),
        ("localhost:9092", True, ""),
        ("A://host", True, ""),
    ],
)
def test_derived_listeners(advertised: str, everywhere: bool, listeners: str) -> None:
    expected = listeners
    if "|" in listeners:
        expected = "A://127.0.0.1:1,B://127.0.0.1:2,C://127.0.0.1:3"
    assert derived_listeners(advertised, everywhere=everywhere) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"KAFKA_ADVERTISED_HOST_NAME": "me"}, "write it into KAFKA_ADVERTISED_LISTENERS"),
        ({"KAFKA_ADVERTISED_PORT": "9092"}, "write it into KAFKA_ADVERTISED_LISTENERS"),
        ({"KAFKA_PORT": "9092"}, "write the port into KAFKA_LISTENERS"),
        ({"KAFKA_CFG_PORT": "9092"}, "environment variable KAFKA_CFG_PORT has no effect"),
        ({"KAFKA_ENABLE_KRAFT": "yes"}, "there is no KRaft here"),
        ({"KAFKA_CFG_PROCESS_ROLES": "broker,controller"}, "process.roles requests KRaft"),
        ({"KAFKA_CLIENT_USERS": "alice", "KAFKA_CLIENT_PASSWORDS": "s"}, "creates no users"),
        ({"KAFKA_ZOOKEEPER_PROTOCOL": "SASL"}, "zookeeper.ssl.client.enable"),
        ({"KAFKA_EXTRA_FLAGS": "--override a=b"}, "behind `start`"),
        ({"BROKER_ID_COMMAND": "hostname", "KAFKA_LOG_DIRS": "x"}, "set KAFKA_BROKER_ID"),
        ({"KAFKA_ADVERTISED_LISTENERS": "A://_{HOSTNAME_COMMAND}:9092"}, "has a placeholder"),
        ({"KAFKA_CREATE_TOPICS": "orders:many:1"}, "numbers from 1 on"),
        ({"KAFKA_CREATE_TOPICS": "orders:1:1:compcat"}, "cleanup.policy"),
        ({"KAFKA_CREATE_TOPICS": "bad name:1:1"}, "Topic name is invalid"),
        ({"KAFKA_CREATE_TOPICS": "a:1:1:delete:x"}, "more parts"),
        ({"KAFKA_CREATE_TOPICS": "a:1:1,a:2:1"}, "there twice"),
        ({"KAFKA_CREATE_TOPICS": "a", "KAFKA_CREATE_TOPICS_SEPARATOR": "("}, "SEPARATOR"),
        ({"KAFKA_SSL_KEYSTORE_CREDENTIALS": "missing"}, "cannot read /etc/kafka/secrets/missing"),
    ],
)
def test_what_would_start_another_broker_stops_the_start(
    environment: dict[str, str], words: str
) -> None:
    assert words in error_of(environment)


def test_variables_of_others_and_of_kubernetes_do_not_stop_it() -> None:
    config = load(
        {
            "KAFKA_PORT": "tcp://10.0.0.1:9092",
            "KAFKA_ADVERTISED_PORT": "",
            "KAFKA_ENABLE_KRAFT": "no",
            "KAFKA_ZOOKEEPER_PROTOCOL": "PLAINTEXT",
        }
    )
    assert not config.warnings
    assert not load({"HOSTNAME_COMMAND": "of another program"}).warnings


def test_options_of_java_are_named_in_one_warning() -> None:
    environment = {"KAFKA_HEAP_OPTS": "-Xmx6g", "KAFKA_JMX_PORT": "9999", "KAFKA_OPTS": "-Da=b"}
    (warning,) = load(environment).warnings
    assert "KAFKA_HEAP_OPTS, KAFKA_JMX_PORT." in warning
    assert "no heap to size" in warning


def test_topics_to_create() -> None:
    config = load({"KAFKA_CREATE_TOPICS": "orders:3:1, users:1:1:compact,\n plain"})
    assert config.ottla_create_topics == ["orders:3:1", "users:1:1:compact", "plain"]
    config = load(
        {"KAFKA_CREATE_TOPICS": "orders:3:1\nusers", "KAFKA_CREATE_TOPICS_SEPARATOR": "\n"}
    )
    assert config.ottla_create_topics == ["orders:3:1", "users"]


def test_key_stores_in_the_folder_of_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_variables, "SECRETS_DIRECTORY", str(tmp_path))
    (tmp_path / "creds").write_bytes(b"\xef\xbb\xbfsecret\r\n")  # of an editor of Windows
    config = load(
        {
            "KAFKA_SSL_KEYSTORE_FILENAME": "keystore.p12",
            "KAFKA_SSL_KEYSTORE_CREDENTIALS": "creds",
        }
    )
    assert config.given["ssl.keystore.location"] == str(tmp_path / "keystore.p12")
    assert config.given["ssl.keystore.password"] == "secret"
