from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.errors import UnknownSetting
from ottla.broker.config.sources import collect, variable_to_setting


def values(path: Path | None = None, *overrides: str, **environment: str) -> dict[str, str]:
    given, _, _ = collect(None if path is None else str(path), overrides, environment)
    return {name: item.value for name, item in given.items()}


def test_the_later_source_wins(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("num.partitions=1\nbroker.id=1\nlog.dirs=file\nnode.id=1\n")
    found = values(
        path,
        "num.partitions=4",
        KAFKA_NUM_PARTITIONS="2",
        OTTLA_NUM_PARTITIONS="3",
        KAFKA_BROKER_ID="2",
        OTTLA_BROKER_ID="3",
        KAFKA_LOG_DIRS="environment",
    )
    assert found == {
        "num.partitions": "4",
        "broker.id": "3",
        "log.dirs": "environment",
        "node.id": "1",
    }


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_DIRS", "log.dirs"),
        ("OTTLA_ADVERTISED_LISTENERS", "advertised.listeners"),
        (
            "KAFKA_LISTENER_NAME_MY__LISTENER_SSL_KEYSTORE_TYPE",
            "listener.name.my_listener.ssl.keystore.type",
        ),
        ("KAFKA_A___B", "a-b"),
    ],
)
def test_variables_are_spelled_as_for_kafkas_image(variable: str, name: str) -> None:
    assert variable_to_setting(variable, variable.partition("_")[0] + "_") == name


def test_capitals_of_a_setting_are_found() -> None:
    assert values(KAFKA_ZOOKEEPER_CLIENTCNXNSOCKET="x") == {"zookeeper.clientCnxnSocket": "x"}


def test_own_settings_need_no_second_prefix() -> None:
    assert values(OTTLA_METRICS_ADDRESS=":9404") == {"ottla.metrics.address": ":9404"}


def test_settings_whose_names_look_like_variables_of_kubernetes() -> None:
    assert values(
        KAFKA_SASL_KERBEROS_SERVICE_NAME="broker",
        KAFKA_LISTENER_NAME_INSIDE_SASL_KERBEROS_SERVICE_NAME="inside",
        KAFKA_LISTENER_NAME_PORTAL_SSL_CLIENT_AUTH="required",
        OTTLA_SERVICE_PORT="9092",
    ) == {
        "sasl.kerberos.service.name": "broker",
        "listener.name.inside.sasl.kerberos.service.name": "inside",
        "listener.name.portal.ssl.client.auth": "required",
    }


def test_what_is_no_setting_is_ignored_with_one_warning() -> None:
    given, warnings, _ = collect(
        None,
        (),
        {
            "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
            "KAFKA_SERVICE_HOST": "10.0.0.1",
            "KAFKA_PORT": "tcp://10.0.0.1:9092",
            "KAFKA_NUM_PARTITONS": "3",
            "UNRELATED": "x",
        },
    )
    assert given == {}
    assert len(warnings) == 1
    assert "KAFKA_NUM_PARTITONS" in warnings[0]
    assert "num.partitions" in warnings[0]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("num.partitions", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("num.partitons=3", "Did you mean num.partitions"),
        ("port=9092", "gone from Kafka"),
    ],
)
def test_bad_overrides(override: str, word: str) -> None:
    (error,) = collect(None, [override], {}).errors
    assert word in str(error)


def test_settings_of_single_listeners_and_plugins_are_let_through() -> None:
    name = "listener.name.inside.ssl.keystore.location"
    assert values(None, f"{name}=/x") == {name: "/x"}


def test_an_unknown_variable_of_ottla_is_an_error() -> None:
    found = collect(None, (), {"OTTLA_NUM_PARTITONS": "3", "OTTLA_METRICS_ADRESS": ":9404"})
    assert [type(error) for error in found.errors] == [UnknownSetting, UnknownSetting]
    assert [str(error) for error in found.errors] == [
        "environment variable OTTLA_NUM_PARTITONS names no setting (num.partitons). "
        "Did you mean num.partitions?",
        "environment variable OTTLA_METRICS_ADRESS names no setting (metrics.adress). "
        "Did you mean ottla.metrics.address?",
    ]


def test_unknown_names_are_ignored_by_prefix(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("confluent.a=1\nnum.partitions=2\nconfluent.b=1\nother.x=1\n")
    environment = {"OTTLA_CONFLUENT_C": "1", "KAFKA_CONFLUENT_D": "1", "OTTLA_X_Y": "1"}
    prefixes = ["confluent.*", "num.", "", "OTTLA_X_"]
    found = collect(str(path), ["confluent.e=1"], environment, prefixes)
    assert list(found.given) == ["num.partitions"]
    assert found.warnings == [
        "Ignored, as --ignore-unknown says: confluent.a, confluent.b, KAFKA_CONFLUENT_D, "
        "OTTLA_CONFLUENT_C, OTTLA_X_Y, confluent.e"
    ]
    (error,) = found.errors
    assert str(error) == (
        f"{path}:4: unknown setting other.x. Remove it, or start with --ignore-unknown other."
    )


def test_a_setting_that_a_file_has_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/a\nbroker.id=1\nbroker.id=1\nlog.dirs=/b\n")
    found = collect(str(path), ["log.dirs=/c"], {})
    assert found.given["log.dirs"].value == "/c"
    assert found.warnings == [f"{path}:4: replaces log.dirs of {path}:1"]
