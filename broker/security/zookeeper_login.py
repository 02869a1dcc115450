"""How this broker reaches ZooKeeper and proves who it is: TLS, SASL, digest, ACLs on znodes.

`zookeeper.ssl.*` and `zookeeper.set.acl` are Kafka's. Kafka's login comes from a JAAS file that the
JVM option `java.security.auth.login.config` names; the same file is read here when KAFKA_OPTS names
it. `ottla.zookeeper.digest` (user:password) is ZooKeeper's own digest scheme, without SASL.

Only brokers of a cluster import this module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.config.errors import ConfigError
from ottla.controller.tree.zookeeper_store import ZooKeeperStore

if TYPE_CHECKING:
    import ssl

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.jaas_file import JaasFile, JaasSection

_KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
# What Kafka can ask of its TLS library and Python's cannot do.
_CHECKS_NOT_DONE = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")


def zookeeper_store(config: BrokerConfig) -> ZooKeeperStore:
    """The store that the settings describe, not connected yet; raises ConfigError."""
    make_context = tls_contexts(config)
    sasl = _sasl(config.jaas_file)
    digest = config.ottla_zookeeper_digest
    if digest is not None and ":" not in digest:
        raise ConfigError("ottla.zookeeper.digest is not user:password.")
    has_certificate = make_context is not None and _path(config, "zookeeper.ssl.keystore.location")
    if config.zookeeper_set_acl and not (sasl or digest or has_certificate):
        raise ConfigError(
            "zookeeper.set.acl gives the znodes to the identity of this broker in ZooKeeper, but "
            "no setting names one: set zookeeper.ssl.keystore.location, or "
            "ottla.zookeeper.digest=user:password, or name a JAAS file with a Client section in "
            "KAFKA_OPTS (-Djava.security.auth.login.config=FILE)."
        )
    try:
        return _store(config, make_context, sasl, digest)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _store(
    config: BrokerConfig,
    make_context: Callable[[], ssl.SSLContext] | None,
    sasl: dict[str, Any] | None,
    digest: str | None,
) -> ZooKeeperStore:
    return ZooKeeperStore(
        config.zookeeper_connect or "",
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_timeout_ms(),
        credentials=[("digest", digest)] if digest else [],
        sasl=sasl,
        tls=make_context,
        set_acl=config.zookeeper_set_acl,
    )


def tls_contexts(config: BrokerConfig) -> Callable[[], ssl.SSLContext] | None:
    """What makes the context of a connection; None without TLS. Raises ConfigError."""
    if not config.value("zookeeper.ssl.client.enable"):
        return None
    for name in _CHECKS_NOT_DONE:
        if config.value(name):
            raise ConfigError(f"{name}: revoked certificates are not looked up by this broker.")
    from ottla.broker.security.tls.contexts import client_context

    def text(name: str) -> str | None:
        if name == "ssl.key.password":
            name = "ssl.keystore.password"
        if name == "ssl.enabled.protocols" and "zookeeper.ssl.protocol" in config.given:
            # As ZooKeeper does: the protocol is the only one, unless several are named.
            return _path(config, f"zookeeper.{name}") or _path(config, "zookeeper.ssl.protocol")
        return _path(config, f"zookeeper.{name}")

    def make() -> ssl.SSLContext:
        try:
            return client_context(text).context
        except ConfigError as error:
            raise ConfigError(f"zookeeper.ssl: {error}") from None

    make()
    return make


def _path(config: BrokerConfig, name: str) -> str | None:
    text = config.effective_text(name)
    return text.strip() or None if text is not None else None


def _require_pure_sasl() -> None:
    if importlib.util.find_spec("puresasl") is None:
        raise ConfigError(
            "SASL to ZooKeeper needs one more package: pip install 'ottla[zookeeper-sasl]'."
        )


def _kerberos(section: JaasSection, values: Mapping[str, str], service: str) -> dict[str, Any]:
    if not {"keyTab", "principal"} <= values.keys():
        raise ConfigError(f"{section.where}: the login needs a keyTab and a principal.")
    _require_pure_sasl()
    from ottla.broker.security.kerberos.login import KerberosLogin, RenewalRules
    from ottla.broker.security.kerberos.zookeeper_mechanism import register_gssapi

    login = KerberosLogin(
        values["principal"], values["keyTab"], service, RenewalRules(), section.where
    )
    register_gssapi()
    return {"mechanism": "GSSAPI", "service": service, "new_context": login.initiate}


def _sasl(file: JaasFile) -> dict[str, Any] | None:
    """kazoo's SASL options from the JAAS file of KAFKA_OPTS; None without a Client section."""
    section = file.section(file.properties.get("zookeeper.sasl.clientconfig", "Client"))
    if section is None:
        return None
    kerberos, digest = section.login(_KERBEROS_MODULE), section.login(_DIGEST_MODULE)
    if kerberos is not None:
        service = file.properties.get("zookeeper.sasl.client.username", "zookeeper")
        return _kerberos(section, kerberos.options, service)
    if digest is None or not {"username", "password"} <= digest.options.keys():
        raise ConfigError(
            f"{section.where}: a login is understood with {_DIGEST_MODULE}, a username and a "
            f"password, or with {_KERBEROS_MODULE}, a keyTab and a principal."
        )
    _require_pure_sasl()
    return {
        "mechanism": "DIGEST-MD5",
        "username": digest.options["username"],
        "password": digest.options["password"],
    }
