"""Everything a broker needs for TLS: its listeners' contexts, that for other brokers, renewal.

A context is replaced by a new one when a file or a dynamic setting of its keys or its trust
changes; new connections get it. Connections that are open stay as they are, as in Kafka.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.dynamic_rules import RENEWABLE
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listener_settings import PREFIX, find_listener_setting
from ottla.broker.security.tls.certificate_dates import CertificateDates
from ottla.broker.security.tls.certificate_identity import check_same_identity
from ottla.broker.security.tls.certificate_names import principal_reader
from ottla.broker.security.tls.contexts import (
    FILES,
    TlsContext,
    client_context,
    listener_context,
    listener_settings,
    uses_tls_between_brokers,
)

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.requests.request_context import Principal

logger = logging.getLogger("ottla.net")

_Stamp = tuple[tuple[str, int, int], ...]


class TlsListener(NamedTuple):
    """What a listener with TLS needs beside what every listener has."""

    context: ssl.SSLContext
    principal_of_certificate: Callable[[dict[str, Any]], Principal]


class _Watched:
    """One context in use and the files that it was made from."""

    def __init__(
        self, config: BrokerConfig, name: str, make: Callable[[BrokerConfig], TlsContext]
    ) -> None:
        self.name = name
        self.current = make(config)
        self.on_renewed: Callable[[ssl.SSLContext], None] | None = None
        self._config = config
        self._settings = listener_settings(config, name)
        self._make = make
        self._stamp = self._new_stamp()

    def check(self) -> None:
        """Makes the context again when a file has changed."""
        stamp = self._new_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self.renew()

    def renew(self) -> None:
        """Makes the context again. What cannot be used is not: the previous one stays."""
        try:
            self.current = self.renewed(self._config)
        except ConfigError as error:
            logger.error("listener %s keeps its previous certificates: %s", self.name, error)
            return
        if self.on_renewed is not None:
            self.on_renewed(self.current.context)
        logger.info("listener %s reloaded its certificates", self.name)

    def renewed(self, config: BrokerConfig) -> TlsContext:
        """A new context. ConfigError when it cannot replace the current one."""
        made = self._make(config)
        check_same_identity(
            self.current.identity,
            made.identity,
            allow_dn_changes=self._allows("ssl.allow.dn.changes"),
            allow_san_changes=self._allows("ssl.allow.san.changes"),
        )
        return made

    def _allows(self, name: str) -> bool:
        return (self._settings(name) or "").lower() == "true"

    def _new_stamp(self) -> _Stamp:
        found = []
        for path in filter(None, map(self._settings, FILES)):
            try:
                stat = os.stat(path)
            except OSError:
                found.append((path, 0, 0))
            else:
                found.append((path, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


class ListenerTls:
    """The contexts of one broker. Loop only. Raises ConfigError where settings do not fit."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._watched: list[_Watched] = []
        self._peer: _Watched | None = None
        if uses_tls_between_brokers(config):
            name = config.inter_broker_listener()
            self._peer = _Watched(
                config, name, lambda config: client_context(listener_settings(config, name))
            )
            self._watched.append(self._peer)

    def peer(self) -> ssl.SSLContext | None:
        """How other brokers are reached from now on; None: without TLS."""
        return None if self._peer is None else self._peer.current.context

    def listener(self, listener_name: str) -> TlsListener:
        """For a listener that uses TLS."""
        watched = _Watched(
            self._config, listener_name, lambda config: listener_context(config, listener_name)
        )
        self._watched.append(watched)
        rules = self._config.listener_text(listener_name, "ssl.principal.mapping.rules")
        return TlsListener(watched.current.context, principal_reader(rules or ""))

    def on_renewed(self, listener_name: str, use: Callable[[ssl.SSLContext], None]) -> None:
        """`use` gets each new context of a listener."""
        for watched in self._watched:
            if watched.name == listener_name and watched is not self._peer:
                watched.on_renewed = use

    def certificates(self) -> dict[str, CertificateDates]:
        """When the certificate of each listener with TLS is valid, by the listener's name."""
        return {
            watched.name: watched.current.dates
            for watched in self._watched
            if watched is not self._peer and watched.current.dates is not None
        }

    def check(self) -> None:
        """Reads again what has changed since the last look."""
        for watched in self._watched:
            watched.check()

    def settings_changed(self, names: list[str]) -> None:
        """Makes contexts again whose settings of keys or trust changed at run time."""
        for watched in self._watched:
            if any(is_renewable(name, watched.name) for name in names):
                watched.renew()

    def validate(self, config: BrokerConfig, names: list[str]) -> None:
        """ConfigError when the changed settings `names`, in `config`, make no usable contexts."""
        for watched in self._watched:
            if any(is_renewable(name, watched.name) for name in names):
                watched.renewed(config)


def is_renewable(name: str, listener_name: str) -> bool:
    """Whether a setting of a listener may change while it is open: those of keys and trust."""
    if not name.startswith(f"{PREFIX}{listener_name.lower()}."):
        return False
    setting = find_listener_setting(name)
    return setting is not None and setting.name in RENEWABLE
