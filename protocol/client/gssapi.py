"""The client's side of SASL GSSAPI (RFC 4752), which is Kerberos, as steps over a security context.

Only authentication is negotiated, as Kafka does: TLS protects what follows.
"""

from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import SaslMechanism
from ottla.protocol.client.security_context import NewContext, SecurityContext

#: The security layer "none", and no size for messages that no layer wraps.
NO_LAYER = b"\x01\x00\x00\x00"


class GssapiMechanism(SaslMechanism):
    """Kerberos, with the ticket of the client for the service of the broker."""

    name = "GSSAPI"
    blocks = True

    def __init__(self, new_context: NewContext, host: str) -> None:
        super().__init__()
        self._new_context = new_context
        self._host = host
        self._context: SecurityContext | None = None
        self._first = b""
        self.has_chosen = False
        """Whether the last token was made."""

    def prepare(self) -> None:
        """Gets the ticket; blocks."""
        if self._context is None:
            context = self._new_context(self._host)
            self._first = context.step(None)
            self._context = context

    def first(self) -> bytes:
        self.prepare()
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        context = self._context
        assert context is not None
        if self.has_chosen:
            self.done = True
            return None
        if not context.complete:
            return context.step(challenge)
        offer = context.unwrap(challenge)
        if len(offer) != len(NO_LAYER) or not offer[0] & NO_LAYER[0]:
            raise AuthenticationError(
                "GSSAPI failed: the broker requires a security layer, and there is none here"
            )
        self.has_chosen = True
        return context.wrap(NO_LAYER + context.initiator.encode())
