from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.listener_settings import base_name, listener_setting


def test_the_parts_of_a_name() -> None:
    found = listener_setting("listener.name.my_listener.scram-sha-256.sasl.jaas.config")
    assert (found.listener, found.mechanism) == ("my_listener", "scram-sha-256")
    assert found.setting.name == "sasl.jaas.config"
    assert base_name("listener.name.a.ssl.client.auth") == "ssl.client.auth"
    assert base_name("log.dirs") == "log.dirs"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("listener.name.cl.ssl.clinet.auth", "unknown setting .* Did you mean ssl.client.auth"),
        ("listener.name.CL.ssl.client.auth", "in lower case here, listener.name.cl.ssl.client"),
        ("listener.name.cl.foo.ssl.client.auth", r"unknown setting foo\.ssl\.client\.auth"),
        ("listener.name.cl.log.dirs", "log.dirs is a setting of the whole broker"),
        ("listener.name.cl.plain.ssl.client.auth", "not of a SASL mechanism"),
        ("listener.name.cl.sasl.jaas.config", "belongs to one mechanism: write"),
        ("listener.name.cl.plian.sasl.jaas.config", "unknown setting"),
        ("listener.name.cl", "unknown setting"),
        ("listener.name.other.ssl.client.auth", "there is no listener OTHER; listeners names CL"),
    ],
)
def test_what_no_listener_reads(name: str, words: str) -> None:
    listeners = {"listeners": "CL://:0", "listener.security.protocol.map": "CL:PLAINTEXT"}
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({**listeners, "inter.broker.listener.name": "CL", name: "x"})


def test_the_line_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("\nlistener.name.plaintext.ssl.clinet.auth=required\n")
    with pytest.raises(ConfigError, match=r"server\.properties:2: listener\.name\.plaintext"):
        BrokerConfig.load(str(file))


def test_a_name_that_is_no_setting() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting ssl\.clientauth"):
        BrokerConfig({"ssl.clientauth": "required"})
