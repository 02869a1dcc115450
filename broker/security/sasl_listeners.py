"""SASL of one broker: what its listeners need to authenticate clients, from the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.config_errors import ConfigError
from broker.config_sasl import enabled_mechanisms, max_reauth_ms, mechanism_setting, plain_passwords
from broker.net.wrong_protocol import LogLimiter
from broker.security.sasl_exchanges import Exchange, PlainExchange, ScramExchange
from broker.security.sasl_session import SaslListener, SaslSession
from protocol.java_order import hash_map_order

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import NetworkStatistics
    from broker.net.connection import Connection
    from broker.net.requests import RequestDecoder
    from broker.security.delegation_tokens import DelegationTokens
    from broker.security.scram_credentials import ScramCredentials
    from broker.timing.timer import DelayQueue

logger = logging.getLogger("ottla.security")

NewSession = Callable[["Connection", "RequestDecoder"], SaslSession]


class SaslListeners:
    """Makes the sessions of all listeners with SASL."""

    def __init__(
        self,
        config: BrokerConfig,
        credentials: ScramCredentials,
        tokens: DelegationTokens,
        timer: DelayQueue,
        now_ms: Callable[[], int],
        statistics: NetworkStatistics,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._tokens = tokens
        self._timer = timer
        self._now_ms = now_ms
        self._statistics = statistics
        self._log_limiter = LogLimiter()

    def new_session(self, listener_name: str) -> NewSession:
        """What makes the session of a new connection on a listener."""
        config = self._config
        listener = SaslListener(
            mechanisms=hash_map_order(dict.fromkeys(enabled_mechanisms(config, listener_name))),
            new_exchange=self._exchanges(listener_name),
            max_reauth_ms=lambda mechanism: max_reauth_ms(config, listener_name, mechanism),
            failure_delay_ms=config.connection_failed_authentication_delay_ms,
            timer=self._timer,
            now_ms=self._now_ms,
            statistics=self._statistics,
            log_limiter=self._log_limiter,
        )
        return lambda connection, decoder: SaslSession(connection, decoder, listener)

    def _exchanges(self, listener_name: str) -> Callable[[str], Exchange]:
        passwords = PlainPasswords(self._config, listener_name)

        def new_exchange(mechanism: str) -> Exchange:
            if mechanism == "PLAIN":
                return PlainExchange(passwords.current)
            return ScramExchange(mechanism, self._credentials.get, self._tokens.login)

        return new_exchange


class PlainPasswords:
    """The users of a listener with PLAIN; the setting may change at run time."""

    def __init__(self, config: BrokerConfig, listener_name: str) -> None:
        self._config = config
        self._listener_name = listener_name
        self._setting = mechanism_setting(listener_name, "PLAIN", "sasl.jaas.config")
        self._text: str | None = None
        self._passwords: Mapping[str, str] = {}

    def current(self) -> Mapping[str, str]:
        text = self._config.effective_text(self._setting)
        if text != self._text:
            self._text = text
            try:
                self._passwords = plain_passwords(self._config, self._listener_name)
            except ConfigError as error:
                logger.error("the users of before are kept: %s", error)
        return self._passwords
