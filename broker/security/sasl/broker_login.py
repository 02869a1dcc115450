"""How this broker authenticates to other brokers: by password, bearer token or Kerberos ticket."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.config.sasl import kerberos_options, peer_login
from ottla.protocol.client.security import Security

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.security.kerberos.login import KerberosLogin
    from ottla.broker.security.sasl.broker_tokens import BrokerTokens
    from ottla.broker.security.sasl.oauth_keys import RunInThread

logger = logging.getLogger("ottla.security")


class BrokerLogin:
    """`security` is for every connection to another broker. Loop only."""

    def __init__(self, security: Security, tokens: BrokerTokens | None = None) -> None:
        self.security = security
        self._tokens = tokens
        # The number of the last change that was begun, and of the one that is in force.
        self._begun = self._in_force = 0

    async def start(self) -> None:
        """Logs in where that takes a server. Raises ConfigError."""
        if self._tokens is not None:
            await self._tokens.start()

    async def renew(self, changed: BrokerLogin) -> None:
        """Log in as `changed` says, for new connections. Raises ConfigError where that fails, and
        nothing changes then, as it does where a later change is in force already."""
        self._begun += 1
        number = self._begun
        await changed.start()
        if number < self._in_force:
            changed.stop()
            return
        self._in_force = number
        self.stop()
        self._tokens = changed._tokens
        self.security.become(changed.security)

    def stop(self) -> None:
        """Nothing is renewed any more."""
        if self._tokens is not None:
            self._tokens.stop()


def build_broker_login(
    config: BrokerConfig,
    timer: DelayQueue,
    now_ms: Callable[[], int],
    run_in_thread: RunInThread,
) -> BrokerLogin | None:
    """None when brokers are reached without SASL. Raises ConfigError."""
    login = peer_login(config)
    if login is None:
        return None
    protocol, mechanism, options = login.security_protocol, login.mechanism, login.options
    if mechanism == "GSSAPI":
        new_context = kerberos_login(config, login.listener_name).initiate
        return BrokerLogin(Security(protocol, mechanism=mechanism, new_context=new_context))
    if mechanism == "OAUTHBEARER":
        from ottla.broker.security.sasl.broker_tokens import broker_tokens

        tokens = broker_tokens(config, login, timer, now_ms, run_in_thread)
        security = Security(
            protocol, mechanism=mechanism, token=tokens.token, extensions=tokens.extensions
        )
        return BrokerLogin(security, tokens)
    return BrokerLogin(
        Security(
            protocol,
            mechanism=mechanism,
            username=options["username"],
            password=options["password"],
        )
    )


def kerberos_login(config: BrokerConfig, listener_name: str) -> KerberosLogin:
    """The Kerberos identity of a listener. Raises ConfigError."""
    from ottla.broker.security.kerberos.login import KerberosLogin, RenewalRules

    options = kerberos_options(config, listener_name)

    def number(name: str) -> float:
        return float(config.listener_text(listener_name, f"sasl.kerberos.{name}") or 0)

    return KerberosLogin(
        options.principal,
        options.keytab,
        options.service_name,
        RenewalRules(
            number("ticket.renew.window.factor"),
            number("ticket.renew.jitter"),
            number("min.time.before.relogin") / 1000,
        ),
        options.setting,
    )
