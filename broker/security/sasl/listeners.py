"""SASL of one broker: what its listeners need to authenticate clients, from the settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.config.definitions import split_list
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.sasl import (
    enabled_mechanisms,
    jaas_login,
    jwks_url,
    max_reauth_ms,
    mechanism_setting,
    plain_passwords,
)
from ottla.broker.security.sasl.exchanges import Exchange, PlainExchange, ScramExchange
from ottla.broker.security.sasl.oauthbearer import OauthExchange, UnsecuredTokens, Validate
from ottla.broker.security.sasl.session import NewSession, SaslListener, SaslSession
from ottla.protocol.java_order import hash_map_order
from ottla.protocol.steps import run_at_once

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.metrics.statistics import NetworkStatistics
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
    from ottla.broker.security.sasl.oauth_keys import RunInThread, SignedTokens
    from ottla.broker.security.sasl.scram_credentials import ScramCredentials

logger = logging.getLogger("ottla.security")


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
        run_in_thread: RunInThread,
        log: SecurityLog,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._tokens = tokens
        self._timer = timer
        self._now_ms = now_ms
        self._statistics = statistics
        self._run_in_thread = run_in_thread
        self._log = log
        self._signed: dict[str, SignedTokens] = {}  # by listener
        self._unread: dict[str, SignedTokens] = {}  # those whose keys were not read yet
        self._starting = asyncio.Lock()
        self._is_stopped = False

    def new_session(self, listener_name: str) -> NewSession:
        """The factory of the sessions of new connections on a listener. Raises ConfigError.

        Called again for an open listener whose settings changed.
        """
        config = self._config
        new_exchange, signed = self._exchanges(config, listener_name)
        if signed is not None:
            self._keep(listener_name, signed)
        mechanisms = run_at_once(
            hash_map_order(dict.fromkeys(enabled_mechanisms(config, listener_name)))
        )
        # Read once: the settings of an open listener may be deleted before it is removed.
        reauth_ms = {each: max_reauth_ms(config, listener_name, each) for each in mechanisms}
        listener = SaslListener(
            mechanisms=mechanisms,
            new_exchange=new_exchange,
            max_reauth_ms=reauth_ms.__getitem__,
            failure_delay_ms=config.connection_failed_authentication_delay_ms,
            timer=self._timer,
            now_ms=self._now_ms,
            statistics=self._statistics,
            log=self._log,
        )
        return lambda connection, decoder: SaslSession(connection, decoder, listener)

    def validate(self, config: BrokerConfig, listener_name: str) -> None:
        """Raises ConfigError when a listener could not get its sessions from `config`."""
        self._exchanges(config, listener_name)

    def _exchanges(
        self, config: BrokerConfig, listener_name: str
    ) -> tuple[Callable[[str], Exchange], SignedTokens | None]:
        """With what keeps the keys of issuers; nothing is started yet."""
        passwords = PlainPasswords(config, listener_name)
        validate: Validate | None = None
        signed: SignedTokens | None = None
        if "OAUTHBEARER" in enabled_mechanisms(config, listener_name):
            signed = self._signed_tokens(config, listener_name)
            validate = (
                _unsigned_tokens(config, listener_name, self._now_ms)
                if signed is None
                else signed.validate
            )

        new_kerberos: Callable[[], Exchange] | None = None
        if "GSSAPI" in enabled_mechanisms(config, listener_name):
            new_kerberos = _kerberos(config, listener_name)

        def new_exchange(mechanism: str) -> Exchange:
            if new_kerberos is not None and mechanism == "GSSAPI":
                return new_kerberos()
            if mechanism == "PLAIN":
                return PlainExchange(passwords.current)
            if validate is not None and mechanism == "OAUTHBEARER":
                return OauthExchange(validate)
            return ScramExchange(mechanism, self._credentials.get, self._tokens.login)

        return new_exchange, signed

    def _keep(self, listener_name: str, signed: SignedTokens) -> None:
        self.forget(listener_name)
        self._signed[listener_name] = self._unread[listener_name] = signed

    async def start(self) -> None:
        """Reads what is not in the settings: keys of issuers. Raises ConfigError.

        Those that were read by an earlier call are not read again; a call at the same time, as for
        settings that change during a start, waits for that.
        """
        async with self._starting:
            for name, tokens in list(self._unread.items()):
                await tokens.start()
                if self._unread.get(name) is tokens:
                    del self._unread[name]
                if self._is_stopped or self._signed.get(name) is not tokens:
                    tokens.stop()  # the listener was closed meanwhile

    def forget(self, listener_name: str) -> None:
        """A listener is closed."""
        self._unread.pop(listener_name, None)
        tokens = self._signed.pop(listener_name, None)
        if tokens is not None:
            tokens.stop()

    def stop(self) -> None:
        self._is_stopped = True
        for tokens in self._signed.values():
            tokens.stop()

    def _signed_tokens(self, config: BrokerConfig, listener_name: str) -> SignedTokens | None:
        url = jwks_url(config, listener_name)
        if not url:
            return None
        # Only now: PyJWT is an extra, and its import slow.
        from ottla.broker.security.sasl.oauth_keys import SignedTokens, TokenRules

        rules = TokenRules.of(config, listener_name, url)
        return SignedTokens(rules, self._timer, self._run_in_thread)


def _unsigned_tokens(
    config: BrokerConfig, listener_name: str, now_ms: Callable[[], int]
) -> Validate:
    login = jaas_login(config, listener_name, "OAUTHBEARER")
    try:
        tokens = UnsecuredTokens({} if login is None else login.options, now_ms)
    except ValueError as error:
        raise ConfigError(f"Listener {listener_name}, OAUTHBEARER: {error}.") from None
    logger.warning(
        "listener %s accepts bearer tokens without a signature, which any client can create; "
        "for development only: sasl.oauthbearer.jwks.endpoint.url names the keys of an issuer",
        listener_name,
    )
    return tokens.validate


def _kerberos(config: BrokerConfig, listener_name: str) -> Callable[[], Exchange]:
    from ottla.broker.security.kerberos.principal_rules import PrincipalRules
    from ottla.broker.security.sasl.broker_login import kerberos_login
    from ottla.broker.security.sasl.gssapi_exchange import GssapiExchange

    login = kerberos_login(config, listener_name)
    name = "sasl.kerberos.principal.to.local.rules"
    texts = split_list(config.listener_text(listener_name, name) or "DEFAULT")
    try:
        rules = PrincipalRules(texts, login.default_realm())
    except ValueError as error:
        raise ConfigError(f"{name}: {error}.") from None
    return lambda: GssapiExchange(login.accept, rules.short_name)


class PlainPasswords:
    """The users of a listener with PLAIN; the setting may change at run time.

    A listener whose setting is deleted keeps its users until it is removed, as in Kafka.
    """

    def __init__(self, config: BrokerConfig, listener_name: str) -> None:
        self._config = config
        self._listener_name = listener_name
        self._setting = mechanism_setting(listener_name, "PLAIN", "sasl.jaas.config")
        self._text = config.effective_text(self._setting)
        self._passwords: Mapping[str, str] = plain_passwords(config, listener_name)

    def current(self) -> Mapping[str, str]:
        text = self._config.effective_text(self._setting)
        if text is not None and text != self._text:
            self._text = text
            try:
                self._passwords = plain_passwords(self._config, self._listener_name)
            except ConfigError as error:
                logger.error(
                    "listener %s keeps its previous PLAIN users, correct the changed setting: %s",
                    self._listener_name,
                    error,
                )
        return self._passwords
