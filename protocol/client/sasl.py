"""The client's side of SASL PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628), as steps
without any I/O.

Send `first()`, then hand every challenge of the broker to `step` and send what it returns,
until `done`.
"""

from collections.abc import Callable
from typing import Protocol

from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.security import Security
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

# RFC 5802 requires 4096 at least; more than this would let a broker make us compute for minutes.
_MAX_ITERATIONS = 1_000_000
_MIN_ITERATIONS = 4096


class SaslMechanism:
    """One exchange; not to be used twice."""

    name = ""
    blocks = False
    """Whether `prepare` may block."""

    def __init__(self) -> None:
        self.done = False

    def prepare(self) -> None:
        """Do what takes time, such as getting a ticket, before the connection is opened.

        Raises AuthenticationError. `first` does it when it was not called.
        """

    def first(self) -> bytes:
        """The first token."""
        raise NotImplementedError

    def step(self, challenge: bytes) -> bytes | None:
        """The next token, or None when nothing more is to be sent.

        Raises AuthenticationError when the challenge is not acceptable.
        """
        raise NotImplementedError


class PlainMechanism(SaslMechanism):
    """User name and password as they are: only for TLS, or networks one trusts."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        super().__init__()
        self._token = f"\x00{username}\x00{password}".encode()

    def first(self) -> bytes:
        return self._token

    def step(self, challenge: bytes) -> bytes | None:
        del challenge  # the response to a success is empty
        self.done = True
        return None


class BearerMechanism(SaslMechanism):
    """A token of an issuer that the broker trusts; `extensions` as in Kafka's KIP-342."""

    name = "OAUTHBEARER"

    def __init__(self, token: str, extensions: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__()
        pairs = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions)]
        self._token = ("n,,\x01" + "".join(f"{pair}\x01" for pair in pairs) + "\x01").encode()
        self._was_refused = False

    def first(self) -> bytes:
        return self._token

    def step(self, challenge: bytes) -> bytes | None:
        if not challenge:
            self.done = True
            return None
        if self._was_refused:
            raise AuthenticationError(f"{self.name} failed: the broker continues the exchange")
        # Why the token is no good, as JSON. After our acknowledgement the broker sends it again as
        # the error of the whole exchange.
        self._was_refused = True
        return b"\x01"


class ScramMechanism(SaslMechanism):
    """SCRAM-SHA-256 and SCRAM-SHA-512: neither side sends the password, both prove they know it."""

    def __init__(
        self, name: str, username: str, password: str, *, nonce: str | None = None
    ) -> None:
        super().__init__()
        if nonce is None:
            import secrets

            nonce = secrets.token_urlsafe(24)
        self.name = name
        self._hash = name.removeprefix("SCRAM-").replace("-", "").lower()
        self._nonce = nonce
        self._password = password.encode()
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        attributes = self._attributes(challenge)
        if "e" in attributes:
            raise AuthenticationError(f"{self.name} failed: the broker sent {attributes['e']}")
        if self._server_signature is None:
            return self._final(challenge, attributes)
        import hmac

        if not hmac.compare_digest(self._decoded(attributes, "v"), self._server_signature):
            raise AuthenticationError(
                f"{self.name} failed: the broker does not know the password itself"
            )
        self.done = True
        return None

    def _attributes(self, challenge: bytes) -> dict[str, str]:
        try:
            pairs = [part.split("=", 1) for part in challenge.decode().split(",")]
            return {key: value for key, value in pairs}  # noqa: C416 - pairs of exactly two
        except ValueError:
            raise AuthenticationError(
                f"{self.name} failed: the broker sent no valid message"
            ) from None

    def _decoded(self, attributes: dict[str, str], key: str) -> bytes:
        import base64
        import binascii

        try:
            return base64.b64decode(attributes[key], validate=True)
        except (KeyError, binascii.Error):
            raise AuthenticationError(
                f"{self.name} failed: the broker's message has no valid {key}="
            ) from None

    def _final(self, challenge: bytes, attributes: dict[str, str]) -> bytes:
        import base64
        import hashlib

        nonce = attributes.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError(f"{self.name} failed: the broker sent another nonce")
        salt = self._decoded(attributes, "s")
        iterations = attributes.get("i", "")
        if not iterations.isascii() or not iterations.isdigit() or len(iterations) > 7:
            raise AuthenticationError(f"{self.name} failed: the iteration count is not a number")
        rounds = int(iterations)
        if not _MIN_ITERATIONS <= rounds <= _MAX_ITERATIONS:
            raise AuthenticationError(
                f"{self.name} failed: {rounds} iterations are not within "
                f"{_MIN_ITERATIONS} and {_MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, rounds)
        without_proof = f"c=biws,r={nonce}"
        message = b",".join((self._first_bare.encode(), challenge, without_proof.encode()))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._hmac(stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        import hmac

        return hmac.digest(key, message, self._hash)


class SecurityContext(Protocol):
    """A context of the GSS-API. All of it raises AuthenticationError."""

    @property
    def complete(self) -> bool:
        """Whether both sides know each other."""

    @property
    def initiator(self) -> str:
        """The principal of the client, when complete."""

    def step(self, token: bytes | None) -> bytes:
        """The next token, which may be empty; the first call of a client has None. May block: it
        asks the KDC for a ticket."""

    def wrap(self, data: bytes) -> bytes:
        """Protect the integrity of a message."""

    def unwrap(self, data: bytes) -> bytes:
        """Check the integrity of a message."""


NewContext = Callable[[str], SecurityContext]
"""Makes the context for a host. May block."""


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
        """Get the ticket; blocks."""
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


def mechanism_factory(
    security: Security | None, host: str = ""
) -> Callable[[], SaslMechanism] | None:
    """Return a factory of exchanges for connections to `host`, or None without SASL."""
    if security is None or not security.uses_sasl:
        return None
    name, username, password = security.mechanism, security.username, security.password
    assert name is not None
    if name == BearerMechanism.name:
        token, extensions = security.token, security.extensions
        assert token is not None
        return lambda: BearerMechanism(token(), extensions)
    if security.new_context is not None:
        new_context = security.new_context
        return lambda: GssapiMechanism(new_context, host)
    assert username is not None
    assert password is not None
    if name == "PLAIN":
        return lambda: PlainMechanism(username, password)
    return lambda: ScramMechanism(name, username, password)


class Authentication:
    """One exchange with the broker called `broker` in errors."""

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
