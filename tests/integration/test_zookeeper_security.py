"""A broker process whose way to ZooKeeper is secured, on a path of its own, with several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.zookeeper_process import start_zookeeper, tls_settings

pytestmark = pytest.mark.zookeeper

SECONDS = 60.0


def test_tls_credentials_acls_a_path_and_a_dead_host(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    secure_port, dead_port = free_port(), free_port()
    settings = tls_settings(certificates, secure_port)
    with (
        start_zookeeper(tmp_path, settings=settings) as zookeeper,
        start_broker(
            tmp_path,
            zookeeper_connect=f"127.0.0.1:{dead_port},127.0.0.1:{secure_port}/some/path",
            zookeeper_ssl_client_enable="true",
            zookeeper_ssl_truststore_location=certificates.authority_path,
            zookeeper_ssl_keystore_location=certificates.client_path,
            zookeeper_set_acl="true",
            ottla_zookeeper_digest="broker:secret",
        ) as broker,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(SECONDS)
        other = KazooClient(zookeeper.connect)
        other.start(SECONDS)
        try:
            assert other.get_children("/some/path/brokers/topics") == ["t"]
            with pytest.raises(NoAuthError):
                other.set("/some/path/brokers/topics/t", b"")
            with pytest.raises(NoAuthError):
                other.get("/some/path/config/users")
            other.add_auth("digest", "broker:secret")
            other.get("/some/path/config/users")
        finally:
            other.stop()
            other.close()
