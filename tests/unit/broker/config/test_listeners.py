from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.listeners import (
    Endpoint,
    base_name,
    check_advertised,
    listener_setting,
    parse_endpoints,
    parse_protocol_map,
)

PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL", "INSIDE": "PLAINTEXT"}


def parse(text: str, setting: str = "listeners") -> list[Endpoint]:
    return parse_endpoints(setting, text, PROTOCOLS)


def test_names_hosts_and_ports() -> None:
    assert parse("PLAINTEXT://:9092, inside://[::1]:9093,SSL://example.org:0") == [
        Endpoint("PLAINTEXT", "PLAINTEXT", "", 9092),
        Endpoint("INSIDE", "PLAINTEXT", "::1", 9093),
        Endpoint("SSL", "SSL", "example.org", 0),
    ]


def test_an_endpoint_reads_as_it_is_written() -> None:
    assert str(Endpoint("A", "PLAINTEXT", "::1", 1)) == "A://[::1]:1"
    assert str(Endpoint("A", "PLAINTEXT", "host", 1)) == "A://host:1"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("localhost:9092", "is not NAME://host:port"),
        ("PLAINTEXT://host", "is not NAME://host:port"),
        ("PLAINTEXT://host:x", "is not NAME://host:port"),
        ("PLAINTEXT://host:70000", "above 65535"),
        ("PLAINTEXT://::1:9092", "in brackets"),
        ("OTHER://host:1", "no security protocol"),
        ("SSL://a:1,SSL://b:2", "is twice"),
        ("SSL://a:1,PLAINTEXT://b:1", "use the same port"),
    ],
)
def test_what_is_wrong_is_said(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(text)


def test_listeners_may_share_a_port_when_it_is_free_to_choose_or_only_advertised() -> None:
    assert len(parse("SSL://a:0,PLAINTEXT://b:0")) == 2
    assert len(parse("SSL://a:1,PLAINTEXT://b:1", "advertised.listeners")) == 2
    assert len(parse("SSL://127.0.0.1:1,PLAINTEXT://[::1]:1")) == 2


def test_the_protocol_map() -> None:
    assert parse_protocol_map("inside:plaintext, SSL:SSL") == {"INSIDE": "PLAINTEXT", "SSL": "SSL"}
    with pytest.raises(ConfigError, match="NAME:PROTOCOL"):
        parse_protocol_map("INSIDE:HTTP")
    assert parse_protocol_map("A:SSL,a:ssl") == {"A": "SSL"}
    with pytest.raises(ConfigError, match="A has both SSL and PLAINTEXT"):
        parse_protocol_map("A:SSL,A:PLAINTEXT")


def test_advertised_listeners_must_be_listeners_that_can_be_reached() -> None:
    listeners = parse("PLAINTEXT://0.0.0.0:1,SSL://:2")
    check_advertised(listeners, parse("PLAINTEXT://host:1"), "PLAINTEXT")
    with pytest.raises(ConfigError, match="none of the listeners"):
        check_advertised(listeners, parse("INSIDE://host:1"), "INSIDE")
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        check_advertised(listeners, parse("PLAINTEXT://0.0.0.0:1"), "PLAINTEXT")
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name: .* PLAINTEXT\.$"):
        check_advertised(listeners, parse("PLAINTEXT://host:1"), "SSL")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_what_cannot_be_protected_is_not_opened(protocol: str) -> None:
    with pytest.raises(ConfigError, match=r"has GSSAPI and needs its keytab"):
        BrokerConfig(
            {
                "listeners": f"{protocol}://127.0.0.1:9092",
                "security.inter.broker.protocol": protocol,
            }
        )


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


def test_a_broker_of_a_cluster_listens_where_kafka_listens() -> None:
    config = BrokerConfig({"zookeeper.connect": "zk:2181"})
    (endpoint,) = config.listener_endpoints()
    assert (endpoint.host, endpoint.port) == ("", 9092)
    assert str(config.listeners) == "PLAINTEXT://:9092"


@pytest.mark.parametrize("zookeeper", [{}, {"zookeeper.connect": ""}])
def test_a_lone_broker_listens_on_the_loopback_address(zookeeper: dict[str, str]) -> None:
    (endpoint,) = BrokerConfig(zookeeper).listener_endpoints()
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", 9092)


def test_all_addresses_of_both_families_leave_no_port_for_another_listener() -> None:
    with pytest.raises(ConfigError, match=r"\[::\] takes IPv4 as well"):
        BrokerConfig(
            {
                "listeners": "PLAINTEXT://0.0.0.0:9092,V6://[::]:9092",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,V6:PLAINTEXT",
            }
        )
