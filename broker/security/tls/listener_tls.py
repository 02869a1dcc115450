"""Everything a broker needs for TLS: its listeners' contexts, that for other brokers, renewal.

A context is replaced by a new one when a file of its keys or its trust, or a dynamic setting,
changes; new connections get it. Connections that are open stay as they are, as in Kafka.

The listener of brokers has two contexts, for both ends of a connection, and they are replaced
together: brokers of a cluster have to trust each other's certificates all the time.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import PREFIX, base_name
from ottla.broker.security.tls.certificate_dates import CertificateDates
from ottla.broker.security.tls.certificate_identity import check_same_identity
from ottla.broker.security.tls.certificate_names import principal_reader
from ottla.broker.security.tls.certificate_renewal import check_renewal, roots_of
from ottla.broker.security.tls.contexts import (
    FILES,
    TlsContext,
    certificate_pairs,
    listener_context,
    listener_settings,
    peer_context,
    trusted_certificates,
    uses_tls_between_brokers,
)
from ottla.broker.security.tls.trust_check import check_handshake

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.requests.request_context import Principal
    from ottla.broker.security.tls.certificate_renewal import CertificateChain

logger = logging.getLogger("ottla.net")

_MAPPING_RULES = "ssl.principal.mapping.rules"

_Stamp = tuple[tuple[str, int, int, int], ...]


class TlsListener(NamedTuple):
    """What a listener with TLS needs beside what every listener has."""

    context: ssl.SSLContext
    principal_of_certificate: Callable[[bytes], Principal]


class _Contexts(NamedTuple):
    """Of one listener; `client` is for connections to other brokers, if the listener is theirs."""

    server: TlsContext
    client: TlsContext | None

    @classmethod
    def of(cls, config: BrokerConfig, name: str, *, at_start: bool = False) -> _Contexts:
        """Raises ConfigError."""
        is_of_brokers = name == config.inter_broker_listener()
        server = listener_context(config, name, at_start=at_start)
        return cls(server, peer_context(config) if is_of_brokers else None)


class _Watched:
    """The contexts of one listener and the files that they were made from.

    `rejected` is why the certificate in the files is not used; empty if it is.
    """

    def __init__(self, config: BrokerConfig, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self.rejected = ""
        self._valid_from = 0.0
        self._now = now
        self.on_renewed: Callable[[ssl.SSLContext], None] | None = None
        self._config = config
        self._settings = listener_settings(config, name)
        self._stamp = self._new_stamp()
        self.current = _Contexts.of(config, name, at_start=True)
        self._check_trust(self.current, self.current)
        self._incomplete = self._missing_issuer()

    def check(self) -> None:
        """Makes the contexts again when a file has changed."""
        stamp = self._new_stamp()
        if stamp != self._stamp or self._is_valid_now():
            self._stamp = stamp
            self.renew()

    def _is_valid_now(self) -> bool:
        """Whether the time has come for a certificate that was not valid yet."""
        return 0.0 < self._valid_from <= self._now()

    def renew(self) -> None:
        """Makes the contexts again. What cannot be used is not: the previous ones stay."""
        self._valid_from = 0.0
        try:
            self.current = self.renewed(self._config)
        except ConfigError as error:
            self.rejected = str(error)
            logger.error("listener %s keeps its previous certificates: %s", self.name, error)
            return
        self.rejected = ""
        self._incomplete = self._missing_issuer()
        if self.on_renewed is not None:
            self.on_renewed(self.current.server.context)
        logger.info("listener %s reloaded its certificates", self.name)

    def renewed(self, config: BrokerConfig) -> _Contexts:
        """New contexts. ConfigError when they cannot replace the current ones."""
        made = _Contexts.of(config, self.name)
        if not self.current.server.unusable:
            self._check_not_worse(made)
        self._check_trust(self.current, made)
        return made

    def _check_not_worse(self, made: _Contexts) -> None:
        """ConfigError if a certificate is worse than the one of the same kind of key in use."""
        pairs = certificate_pairs(self.current.server.certificates, made.server.certificates)
        for old, new in pairs:
            self._check_dates(old.chain, new.chain, made)
        for old, new in pairs:
            check_same_identity(
                old.identity,
                new.identity,
                allow_dn_changes=self._allows("ssl.allow.dn.changes"),
                allow_san_changes=self._allows("ssl.allow.san.changes"),
            )

    def _check_dates(self, old: CertificateChain, new: CertificateChain, made: _Contexts) -> None:
        try:
            check_renewal(old, new, made.server.context.get_ca_certs(True), self._now())
        except ConfigError:
            if new.valid_from() > self._now():
                self._valid_from = max(self._valid_from, new.valid_from())
            raise

    def dates(self) -> CertificateDates | None:
        """Of the certificate that expires first, with what is wrong with it; None without one."""
        server = self.current.server
        if server.chain is None:
            return None
        return server.chain.leaf.dates._replace(
            rejected=self.rejected, unusable=server.unusable, incomplete=self._incomplete
        )

    def _missing_issuer(self) -> str:
        """Why clients with this broker's own truststore could not verify a certificate in use."""
        try:
            roots = roots_of(trusted_certificates(self._settings))
        except (ConfigError, ValueError):
            return ""  # that of a listener that asks for no certificates is not used
        lacking = [
            each
            for each in self.current.server.certificates
            if roots and each.chain.lacks_issuer(roots)
        ]
        if not lacking:
            return ""
        return (
            "its key store has no certificate of the issuer, and the truststore does not have it "
            "as a root"
        )

    def _check_trust(self, old: _Contexts, new: _Contexts) -> None:
        """ConfigError when brokers with `old` and with `new` could not connect to each other.

        As Kafka's SslEngineValidator. A broker without a cluster connects to no other. Kafka also
        checks against stores that have expired, and so keeps them until a restart.
        """
        if self._config.alone or old.client is None or new.client is None:
            return
        if old is new or not _is_usable(old.server, old.client):
            check_handshake(new.server.context, new.client.context)
            return
        check_handshake(old.server.context, new.client.context)
        check_handshake(new.server.context, old.client.context)

    def _allows(self, name: str) -> bool:
        return (self._settings(name) or "").lower() == "true"

    def _new_stamp(self) -> _Stamp:
        found = []
        for path in filter(None, map(self._settings, FILES)):
            try:
                stat = os.stat(path)
            except OSError:
                found.append((path, 0, 0, 0))
            else:
                # The inode, too: tools that copy can keep the time, and certificates have one size.
                found.append((path, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


class ListenerTls:
    """The contexts of one broker. Loop only. Raises ConfigError where settings do not fit."""

    def __init__(self, config: BrokerConfig, now: Callable[[], float] = time.time) -> None:
        """`now` is in seconds since 1970."""
        _check_virtual_machine(config)
        self._config = config
        self._now = now
        self._watched: dict[str, _Watched] = {}
        self._peer: _Watched | None = None
        if uses_tls_between_brokers(config):
            self._peer = self._watch(config.inter_broker_listener())

    def _watch(self, name: str) -> _Watched:
        if name not in self._watched:
            self._watched[name] = _Watched(self._config, name, self._now)
        return self._watched[name]

    def peer(self) -> ssl.SSLContext | None:
        """How other brokers are reached from now on; None: without TLS."""
        if self._peer is None or self._peer.current.client is None:
            return None
        return self._peer.current.client.context

    def listener(self, listener_name: str) -> TlsListener:
        """For a listener that uses TLS."""
        watched = self._watch(listener_name)
        rules = self._config.listener_text(listener_name, _MAPPING_RULES)
        return TlsListener(watched.current.server.context, principal_reader(rules))

    def on_renewed(self, listener_name: str, use: Callable[[ssl.SSLContext], None]) -> None:
        """`use` gets each new context of a listener."""
        self._watch(listener_name).on_renewed = use

    def forget(self, listener_name: str) -> None:
        """A listener is closed; one that is opened under its name has contexts of its own."""
        self._watched.pop(listener_name, None)

    def certificates(self) -> dict[str, CertificateDates]:
        """When the certificate of each listener with TLS is valid, by the listener's name."""
        found = {watched.name: watched.dates() for watched in self._watched.values()}
        return {name: dates for name, dates in found.items() if dates is not None}

    def check(self) -> None:
        """Reads again what has changed since the last look."""
        for watched in self._watched.values():
            watched.check()

    def settings_changed(self, names: list[str]) -> None:
        """Makes contexts again whose settings changed at run time."""
        for watched in self._watched.values():
            if any(is_of_tls(name, watched.name) for name in names):
                watched.renew()

    def validate(self, config: BrokerConfig, names: list[str]) -> None:
        """ConfigError when the changed settings `names`, in `config`, make no usable contexts."""
        for watched in self._watched.values():
            if any(is_of_tls(name, watched.name) for name in names):
                watched.renewed(config)
                principal_reader(config.listener_text(watched.name, _MAPPING_RULES))


def _is_usable(server: TlsContext, client: TlsContext) -> bool:
    try:
        check_handshake(server.context, client.context)
    except ConfigError:
        return False
    return True


def _check_virtual_machine(config: BrokerConfig) -> None:
    """ConfigError for an option of the JVM that makes it reject certificates accepted here."""
    option = "com.sun.net.ssl.checkRevocation"
    if config.jaas_file.properties.get(option, "").lower() == "true":
        raise ConfigError(
            f"KAFKA_OPTS: -D{option}=true: certificates are not looked up with OCSP or at "
            "distribution points here. Name revocation lists with ottla.ssl.crl.location and drop "
            "the option."
        )


def is_of_tls(name: str, listener_name: str) -> bool:
    """Whether a setting decides how connections of a listener are made with TLS."""
    if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}{listener_name.lower()}."):
        return False
    return base_name(name).startswith(("ssl.", "ottla.ssl."))
