"""Settings of the way to ZooKeeper; what they do there is in tests/integration."""

from __future__ import annotations

import ssl
import tomllib
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.security import zookeeper_login
from ottla.broker.security.zookeeper_login import tls_contexts, zookeeper_store
from ottla.controller.tree.zookeeper_store import ZooKeeperStore

JAAS = """KafkaServer { other required; };
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="broker"
  password="secret";
};
"""


def store(**settings: str) -> ZooKeeperStore:
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    return zookeeper_store(BrokerConfig({"zookeeper.connect": "127.0.0.1:1", **texts}))


def test_acls_need_an_identity_to_give_the_nodes_to() -> None:
    with pytest.raises(ConfigError, match="no setting names one"):
        store(zookeeper_set_acl="true")
    store(zookeeper_set_acl="true", ottla_zookeeper_digest="broker:secret")
    with pytest.raises(ConfigError, match="user:password"):
        store(ottla_zookeeper_digest="broker")


def test_the_login_of_a_jaas_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jaas.conf"
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1G -Djava.security.auth.login.config={file}")
    with pytest.raises(ConfigError, match="cannot be read"):
        store()
    file.write_text(JAAS)
    store(zookeeper_set_acl="true")
    file.write_text(JAAS.replace("Digest", "Krb5"))
    with pytest.raises(ConfigError, match="DigestLoginModule"):
        store()
    file.write_text("KafkaServer { other required; };")
    store()


def test_the_extra_for_sasl_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text(JAAS)
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={file}")
    monkeypatch.setattr(zookeeper_login.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ottla\[zookeeper-sasl\]'"):
        store()
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["zookeeper-sasl"]) <= set(extras["kerberos"])  # which the image has


def test_keys_that_cannot_be_read_name_the_setting(tmp_path: Path) -> None:
    keys = tmp_path / "keys.jks"
    keys.write_bytes(b"\xce\xce\xce\xce....")
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl: .*JCEKS.*keytool"):
        store(zookeeper_ssl_client_enable="true", zookeeper_ssl_keystore_location=str(keys))


def test_versions_and_suites_are_those_of_the_settings(tmp_path: Path) -> None:
    config = BrokerConfig(
        {
            "zookeeper.connect": "127.0.0.1:1",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.protocol": "TLSv1.2",
            "zookeeper.ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        }
    )
    make = tls_contexts(config)
    assert make is not None
    context = make()
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    older = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert older == ["ECDHE-RSA-AES256-GCM-SHA384"]
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl: ssl\.enabled\.protocols: SSLv3"):
        store(zookeeper_ssl_client_enable="true", zookeeper_ssl_enabled_protocols="SSLv3")


def test_stores_of_java() -> None:
    stores = Path(__file__).parents[1] / "config" / "stores"
    settings = {
        "zookeeper_ssl_client_enable": "true",
        "zookeeper_ssl_keystore_location": str(stores / "keys.pkcs12"),
        "zookeeper_ssl_keystore_password": "storepass",
        "zookeeper_ssl_keystore_type": "PKCS12",
        "zookeeper_ssl_truststore_location": str(stores / "trust.jks"),
        "zookeeper_ssl_truststore_password": "storepass",
        "zookeeper_ssl_truststore_type": "JKS",
    }
    store(**settings)
    for name, words in [
        ("zookeeper_ssl_keystore_password", "or its password is wrong"),
        ("zookeeper_ssl_truststore_password", "the password of the store is wrong"),
        ("zookeeper_ssl_keystore_type", "stores of the type wrong are not read"),
        ("zookeeper_ssl_truststore_type", "stores of the type wrong are not read"),
    ]:
        with pytest.raises(ConfigError, match=words):
            store(**settings | {name: "wrong"})


def test_checks_that_are_not_done_are_refused() -> None:
    with pytest.raises(ConfigError, match="revoked"):
        store(zookeeper_ssl_client_enable="true", zookeeper_ssl_ocsp_enable="true")
