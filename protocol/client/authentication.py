"""The SASL part of opening a connection: which requests to send, one after the other.

``first`` gives the first request; every response goes to ``on_response``, which gives the next
request, or None when the client is authenticated.
"""

from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import SaslMechanism
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


class Authentication:
    """One exchange with the broker called ``broker`` in errors."""

    def __init__(self, broker: str, mechanism: SaslMechanism) -> None:
        self.session_lifetime_ms = 0
        """After how long the broker wants us to authenticate again (KIP-368), 0 for never."""
        self._broker = broker
        self._mechanism = mechanism

    def first(self) -> Message:
        """SaslHandshake, of version 1 at least: later tokens go in SaslAuthenticate."""
        return SaslHandshakeRequest(mechanism=self._mechanism.name)

    def on_response(self, response: Message) -> Message | None:
        """The next request, None at the end. Raises AuthenticationError."""
        if isinstance(response, SaslHandshakeResponse):
            return self._on_handshake(response)
        assert isinstance(response, SaslAuthenticateResponse)
        return self._on_authenticate(response)

    def _on_handshake(self, response: SaslHandshakeResponse) -> Message:
        if response.error_code != ErrorCode.NONE:
            offered = ", ".join(response.mechanisms) or "none"
            raise self._refused(
                f"broker {self._broker} does not take sasl.mechanism={self._mechanism.name} "
                f"({error_name(response.error_code)}); it offers: {offered}"
            )
        return SaslAuthenticateRequest(auth_bytes=self._mechanism.first())

    def _on_authenticate(self, response: SaslAuthenticateResponse) -> Message | None:
        if response.error_code != ErrorCode.NONE:
            words = response.error_message or error_name(response.error_code)
            raise self._refused(
                f"broker {self._broker} refused to authenticate us by {self._mechanism.name}: "
                f"{words}"
            )
        try:
            token = self._mechanism.step(response.auth_bytes)
        except AuthenticationError as error:
            raise self._refused(f"broker {self._broker}: {error}") from None
        if token is not None:
            return SaslAuthenticateRequest(auth_bytes=token)
        assert self._mechanism.done
        self.session_lifetime_ms = response.session_lifetime_ms
        return None

    def _refused(self, words: str) -> AuthenticationError:
        return AuthenticationError(words, broker=self._broker)
