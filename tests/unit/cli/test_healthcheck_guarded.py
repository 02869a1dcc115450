"""`ottla healthcheck` of brokers that require TLS or SASL on every listener."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server.broker_server import BrokerServer
from ottla.cli.healthcheck import main
from ottla.cli.healthcheck_guarded import Listener, guarded_listener
from tests.doubles.certificates import Certificates

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="a" password="b" user_a="b";'
)


@pytest.mark.parametrize(
    ("environment", "listener"),
    [
        ({}, None),
        ({"KAFKA_LISTENERS": "PLAINTEXT://:9092,SSL://:9093"}, None),
        ({"KAFKA_LISTENERS": "SSL://:9093"}, Listener("SSL", "127.0.0.1:9093", "SSL")),
        (
            {
                "OTTLA_LISTENERS": "OUT://0.0.0.0:9092,IN://b:9093",
                "OTTLA_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_SSL, IN:SASL_PLAINTEXT",
            },
            Listener("OUT", "127.0.0.1:9092", "SASL_SSL"),
        ),
        (
            {
                "KAFKA_LISTENERS": "OUT://0.0.0.0:9092,IN://b:9093",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_SSL,IN:PLAINTEXT",
            },
            None,
        ),
        (
            {
                "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092",
                "OTTLA_LISTENERS": "OUT://0.0.0.0:9095",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:PLAINTEXT",
                "OTTLA_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SSL",
            },
            Listener("OUT", "127.0.0.1:9095", "SSL"),
        ),
    ],
)
def test_guarded_listener(environment: dict[str, str], listener: Listener | None) -> None:
    assert guarded_listener(environment) == listener


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL"])
async def test_a_guarded_broker_is_checked_without_credentials(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "log.dirs": str(tmp_path / "data"),
        "listeners": f"{protocol}://127.0.0.1:0",
        "security.inter.broker.protocol": protocol,
        "ottla.metrics.address": "127.0.0.1:0",
    }
    if protocol == "SSL":
        certificates = Certificates(tmp_path)
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.server_path),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority_path),
        }
    else:
        settings |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        }
    server = BrokerServer(BrokerConfig(settings), lambda: None)
    await server.start()
    (port,) = server.ports.values()
    environment = {"KAFKA_LISTENERS": f"{protocol}://:{port}"}
    assert await asyncio.to_thread(main, [], environment) == 0
    assert capsys.readouterr().out.startswith(f"healthy: 127.0.0.1:{port}, ApiVersions, ")
    environment["OTTLA_METRICS_ADDRESS"] = f":{server.metrics_port}"
    assert await asyncio.to_thread(main, [], environment) == 0
    assert f"127.0.0.1:{server.metrics_port}, /readyz, " in capsys.readouterr().out
    server.parts.logs.directories.all[0].mark_full("no room")
    assert await asyncio.to_thread(main, [], environment) == 1
    assert "accepts no records: no room." in capsys.readouterr().err
    await server.stop()
    assert await asyncio.to_thread(main, [], environment) == 3
    assert "is the broker running?" in capsys.readouterr().err
