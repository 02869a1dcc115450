"""The broker's side of SASL GSSAPI (RFC 4752): Kerberos, as steps over a security context.

Mirrors what Kafka uses of Java's `GssKrb5Server`: authentication only, no security layer, and the
principal of the ticket, whatever authorization id the client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from ottla.broker.security.sasl.exchanges import AuthenticationRefused, Exchange, shown
from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import NO_LAYER

if TYPE_CHECKING:
    from ottla.protocol.client.sasl import SecurityContext


class _State(Enum):
    ESTABLISHING = 1
    OFFERING = 2
    CHOOSING = 3


class GssapiExchange(Exchange):
    """One exchange."""

    def __init__(
        self, new_context: Callable[[], SecurityContext], short_name: Callable[[str], str]
    ) -> None:
        """`short_name` makes the user's name of a principal; it raises ValueError."""
        super().__init__()
        self._new_context = new_context
        self._short_name = short_name
        self._context: SecurityContext | None = None
        self._state = _State.ESTABLISHING

    def step(self, token: bytes) -> bytes:
        try:
            if self._context is None:
                self._context = self._new_context()
            return self._step(self._context, token)
        except AuthenticationError as error:
            raise AuthenticationRefused(f"GSSAPI: {error}") from None

    def _step(self, context: SecurityContext, token: bytes) -> bytes:
        if self._state is _State.ESTABLISHING:
            response = context.step(token)
            if not context.complete:
                return response
            self._state = _State.OFFERING
            if response:
                return response  # the client acknowledges it with an empty token
            token = b""
        if self._state is _State.OFFERING:
            if token:
                raise AuthenticationRefused("GSSAPI: the client sent a token out of turn")
            self._state = _State.CHOOSING
            return context.wrap(NO_LAYER)
        self._complete(context, context.unwrap(token))
        return b""

    def _complete(self, context: SecurityContext, choice: bytes) -> None:
        if len(choice) < len(NO_LAYER) or choice[0] != NO_LAYER[0]:
            raise AuthenticationRefused("GSSAPI: the client chose a security layer, none is here")
        # The authorization id that follows does not count, as in Kafka: kafka-python sends the name
        # of the service there.
        principal = context.initiator
        try:
            self.name = self._short_name(principal)
        except ValueError as error:
            raise AuthenticationRefused(f"GSSAPI: {error}") from None
        if not self.name:
            raise AuthenticationRefused(f"GSSAPI: no user is made of {shown(principal)}")
        self.is_complete = True
