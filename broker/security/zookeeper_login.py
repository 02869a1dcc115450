"""How this broker reaches ZooKeeper and proves who it is: TLS, SASL, digest, ACLs on znodes.

`zookeeper.ssl.*` and `zookeeper.set.acl` are Kafka's. Kafka's login comes from a JAAS file that the
JVM option `java.security.auth.login.config` names; the same file is read here when KAFKA_OPTS names
it. `ottla.zookeeper.digest` (user:password) is ZooKeeper's own digest scheme, without SASL.

Only brokers of a cluster import this module.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.zookeeper_tls import tls_handler
from ottla.controller.tree.zookeeper_store import ZooKeeperStore

if TYPE_CHECKING:
    import ssl

    from ottla.broker.config.broker_config import BrokerConfig

_JAAS_OPTION = re.compile(r"-Djava\.security\.auth\.login\.config=(\S+)")
_SECTION_OPTION = re.compile(r"-Dzookeeper\.sasl\.clientconfig=(\S+)")
_SERVICE_OPTION = re.compile(r"-Dzookeeper\.sasl\.client\.username=(\S+)")
_VALUE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
# What Kafka can ask of its TLS library and Python's cannot do.
_CHECKS_NOT_DONE = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")


def zookeeper_store(
    config: BrokerConfig, environment: Mapping[str, str] = os.environ
) -> ZooKeeperStore:
    """The store that the settings describe, not connected yet; raises ConfigError."""
    make_context = tls_contexts(config)
    sasl = _sasl(environment)
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
    return ZooKeeperStore(
        config.zookeeper_connect or "",
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_timeout_ms(),
        credentials=[("digest", digest)] if digest else [],
        sasl=sasl,
        tls=None if make_context is None else partial(tls_handler, make_context),
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
        raise ConfigError("SASL to ZooKeeper needs one more package: pip install pure-sasl.")


def _kerberos(path: str, body: str, values: Mapping[str, str], options: str) -> dict[str, Any]:
    if not {"keyTab", "principal"} <= values.keys():
        raise ConfigError(f"{path}: the Client section needs a keyTab and a principal.")
    _require_pure_sasl()
    from ottla.broker.security.kerberos.login import KerberosLogin, RenewalRules
    from ottla.broker.security.kerberos.zookeeper_mechanism import register_gssapi

    named = _SERVICE_OPTION.search(options)
    service = named.group(1) if named else "zookeeper"
    login = KerberosLogin(values["principal"], values["keyTab"], service, RenewalRules(), path)
    register_gssapi()
    return {"mechanism": "GSSAPI", "service": service, "new_context": login.initiate}


def _sasl(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """kazoo's SASL options from the JAAS file of KAFKA_OPTS; None without a Client section."""
    options = environment.get("KAFKA_OPTS", "")
    found = _JAAS_OPTION.search(options)
    if found is None:
        return None
    path = found.group(1).strip("\"'")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"KAFKA_OPTS: {path} cannot be read: {error.strerror}.") from None
    named = _SECTION_OPTION.search(options)
    section = re.search(
        rf"\b{re.escape(named.group(1) if named else 'Client')}\s*\{{(.*?)\}}", text, re.DOTALL
    )
    if section is None:
        return None
    body = section.group(1)
    values = dict(_VALUE.findall(body))
    if _KERBEROS_MODULE in body:
        return _kerberos(path, body, values, options)
    if _DIGEST_MODULE not in body or not {"username", "password"} <= values.keys():
        raise ConfigError(
            f"{path}: the Client section is understood with {_DIGEST_MODULE}, a username and a "
            f"password, or with {_KERBEROS_MODULE}, a keyTab and a principal."
        )
    _require_pure_sasl()
    return {
        "mechanism": "DIGEST-MD5",
        "username": values["username"],
        "password": values["password"],
    }
