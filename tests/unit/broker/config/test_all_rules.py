"""All errors of the settings at once, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.all_rules import check_rules
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.error_places import located, names_in
from ottla.broker.config.errors import ConfigError, ConfigErrors, UnknownSetting, raise_all
from ottla.broker.config.properties_file import Property


def errors_of(path: Path | None, *overrides: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        BrokerConfig.load(None if path is None else str(path), overrides, environment)
    return [str(error) for error in raised.value.errors]


def test_rules_and_values_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("replica.fetch.wait.max.ms=40000\nnum.partitions=many\n")
    found = errors_of(path, "super.users=alice", OTTLA_BROKER_ID="-7")
    assert [line.partition(" ")[0] for line in found] == [
        f"{path}:2:",
        "--override:",
        "environment",
    ]
    assert "'alice' is no principal" in found[1]
    assert "broker.id -7 must lie between" in found[2]


def test_a_rule_about_a_value_that_is_wrong_says_nothing() -> None:
    found = errors_of(
        None,
        "replica.socket.timeout.ms=soon",
        "replica.fetch.wait.max.ms=60000",
        "log.dirs=",
        "log.dir=",
    )
    assert found == [
        "--override: Invalid value soon for configuration replica.socket.timeout.ms: expected a "
        "whole number (int)",
        "--override: log.dirs names no directory.",
    ]


def test_one_error_stays_one() -> None:
    config = BrokerConfig()
    check_rules(config)
    config.given["num.partitons"] = "1"
    with pytest.raises(UnknownSetting, match=r"^unknown setting num.partitons\."):
        check_rules(config)
    raise_all([])
    same = [ConfigError("a"), ConfigError("a")]
    with pytest.raises(ConfigError, match=r"^a$"):
        raise_all(same)
    assert str(ConfigErrors([ConfigError("a"), ConfigError("b")])) == (
        "2 settings are wrong:\n  a\n  b"
    )


def test_the_place_is_that_of_the_first_setting_that_was_given() -> None:
    error = UnknownSetting("log.roll.ms is above log.roll.hours.")
    assert names_in(error) == ["log.roll.ms", "log.roll.hours"]
    given = {"log.roll.hours": Property("log.roll.hours", "1", "file:3")}
    found = located(error, given)
    assert (type(found), str(found)) == (UnknownSetting, f"file:3: {error}")
    assert located(error, {}) is error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.client.auth", "requird"),
        ("max.connections", "many"),
        ("connections.max.reauth.ms", "soon"),
        ("plain.connections.max.reauth.ms", "soon"),
        ("sasl.server.max.receive.size", "-"),
    ],
)
def test_a_value_for_one_listener_is_checked(name: str, value: str) -> None:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", f"listener.name.plaintext.{name}": value}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(given)
    assert str(caught.value).startswith(f"listener.name.plaintext.{name}: ")
    assert value in str(caught.value)
