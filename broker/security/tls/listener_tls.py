"""Everything a broker needs for TLS: its listeners' contexts, that for other brokers, renewal.

Certificates are renewed while the broker runs: their files are read again when they change.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.tls.certificate_names import principal_reader
from ottla.broker.security.tls.contexts import (
    certificate_files,
    listener_context,
    peer_context,
    renew,
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


class ListenerTls:
    """The contexts of one broker. Loop only. Raises ConfigError where settings do not fit."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._watched: list[tuple[str, ssl.SSLContext]] = []
        self._stamps: list[_Stamp] = []
        #: How other brokers are reached; None: without TLS.
        self.peer = peer_context(config)
        if self.peer is not None:
            self._watch(config.inter_broker_listener(), self.peer)

    def listener(self, listener_name: str) -> TlsListener:
        """For a listener that uses TLS."""
        context = listener_context(self._config, listener_name)
        self._watch(listener_name, context)
        rules = self._config.listener_text(listener_name, "ssl.principal.mapping.rules")
        return TlsListener(context, principal_reader(rules or ""))

    def check(self) -> None:
        """Reads again what has changed since the last look. What cannot be used is not."""
        for number, (listener_name, context) in enumerate(self._watched):
            stamp = self._stamp(listener_name)
            if stamp == self._stamps[number]:
                continue
            self._stamps[number] = stamp
            try:
                renew(self._config, listener_name, context)
            except ConfigError as error:
                logger.error(
                    "listener %s keeps its previous certificates: %s", listener_name, error
                )
            else:
                logger.info("listener %s reloaded its certificates", listener_name)

    def _watch(self, listener_name: str, context: ssl.SSLContext) -> None:
        self._watched.append((listener_name, context))
        self._stamps.append(self._stamp(listener_name))

    def _stamp(self, listener_name: str) -> _Stamp:
        found = []
        for path in certificate_files(self._config, listener_name):
            try:
                stat = os.stat(path)
            except OSError:
                found.append((path, 0, 0))
            else:
                found.append((path, stat.st_mtime_ns, stat.st_size))
        return tuple(found)
