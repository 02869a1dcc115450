"""The broker's side of SASL mechanisms, as steps without any I/O: PLAIN and SCRAM.

Mirrors Kafka's `PlainSaslServer` and `ScramSaslServer`, down to the messages: clients get only what
does not help to guess credentials, the rest is logged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping

from ottla.broker.security.sasl.scram_credentials import (
    HASHES,
    MIN_ITERATIONS,
    ScramCredential,
    TokenLogin,
)

_SAFE = r"[\x01-\x2b\x2d-\x3c\x3e-\x7f]"
_NAME = rf"(?:{_SAFE}|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_BASE64 = r"[a-zA-Z0-9/+]*={0,2}"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c={_BASE64},r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)

# A user name is the client's choice; this much of it goes into a log line.
_MAX_LOGGED_NAME = 100


class AuthenticationRefused(Exception):
    """`reason` is logged and holds no secret; `message` is sent to the client, None for the general
    message."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class AuthenticationWaits(Exception):
    """A step needs something that is being fetched: it is to be repeated once `call_back`, which
    this gets a function for, calls that function."""

    def __init__(self, call_back: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.call_back = call_back


class Exchange:
    """One exchange of tokens; not to be used twice."""

    def __init__(self) -> None:
        #: The name of the client, once the exchange is complete.
        self.name = ""
        #: The name that the client claims, once it has said it; not to be trusted.
        self.claimed_name = ""
        self.is_complete = False
        #: When what the client showed ends to be valid, in milliseconds of the epoch.
        self.expires_at_ms: int | None = None
        #: Whether it showed a delegation token.
        self.is_token = False

    def step(self, token: bytes) -> bytes:
        """The response to a token. Raises AuthenticationRefused and AuthenticationWaits."""
        raise NotImplementedError


def shown(name: str) -> str:
    """A name that a client sent, fit for a log line."""
    return repr(name[:_MAX_LOGGED_NAME])


class PlainExchange(Exchange):
    """User name and password as they are (RFC 4616)."""

    def __init__(self, passwords: Callable[[], Mapping[str, str]]) -> None:
        """`passwords` gives them by user."""
        super().__init__()
        self._passwords = passwords

    def step(self, token: bytes) -> bytes:
        parts = token.decode(errors="replace").split("\0")
        if len(parts) != 3:
            count = min(len(parts), 4)
            raise _refused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}")
        authorization_id, user, password = parts
        self.claimed_name = user
        if not user:
            raise _refused("Authentication failed: username not specified")
        if not password:
            raise _refused("Authentication failed: password not specified")
        expected = self._passwords().get(user)
        if expected is None or not hmac.compare_digest(expected.encode(), password.encode()):
            what = "unknown user" if expected is None else "wrong password for user"
            raise AuthenticationRefused(
                f"{what} {shown(user)}; PLAIN knows the users of the listener's setting "
                'plain.sasl.jaas.config: user_<name>="<password>"',
                "Authentication failed: Invalid username or password",
            )
        if authorization_id and authorization_id != user:
            raise _refused(_OTHER_AUTHORIZATION_ID)
        self.name = user
        self.is_complete = True
        return b""


_OTHER_AUTHORIZATION_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def _refused(message: str) -> AuthenticationRefused:
    return AuthenticationRefused(message, message)


class ScramExchange(Exchange):
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), by password or delegation token."""

    def __init__(
        self,
        mechanism: str,
        credential_of: Callable[[str, str], ScramCredential | None],
        token_of: Callable[[str, str], TokenLogin | None] = lambda mechanism, token_id: None,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        """`credential_of` and `token_of` find by mechanism and name."""
        super().__init__()
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._credential_of = credential_of
        self._token_of = token_of
        self._new_nonce = nonce
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._messages = ""  # the two first messages, which the proof covers

    def step(self, token: bytes) -> bytes:
        text = token.decode(errors="replace")
        return (self._first(text) if self._credential is None else self._final(text)).encode()

    def _first(self, text: str) -> str:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationRefused(f"{self._mechanism}: its first message is not valid")
        user = self.claimed_name = match["name"].replace("=2C", ",").replace("=3D", "=")
        options = dict(part.split("=", 1) for part in match["extensions"].split(",")[1:])
        if options.get("tokenauth", "").lower() == "true":
            credential = self._of_token(user)
        else:
            credential = self._of_user(user)
        authorization_id = match["authzid"]
        if authorization_id and authorization_id != user:
            raise _refused(_OTHER_AUTHORIZATION_ID)
        if credential.iterations < MIN_ITERATIONS:
            raise AuthenticationRefused(
                f"the {self._mechanism} credential of {shown(user)} has "
                f"{credential.iterations} iterations, fewer than {MIN_ITERATIONS}: set it again"
            )
        self._credential = credential
        self._nonce = match["nonce"] + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{match['bare']},{first},"
        return first

    def _of_user(self, user: str) -> ScramCredential:
        credential = self._credential_of(self._mechanism, user)
        if credential is None:
            raise AuthenticationRefused(
                f"user {shown(user)} has no {self._mechanism} credential; make one with "
                f"kafka-configs --alter --entity-type users --add-config '{self._mechanism}=[...]'"
            )
        self.name = user
        return credential

    def _of_token(self, token_id: str) -> ScramCredential:
        found = self._token_of(self._mechanism, token_id)
        if found is None:
            raise AuthenticationRefused(
                f"there is no delegation token {shown(token_id)}, or it has expired"
            )
        self.name, self.expires_at_ms, self.is_token = found.owner, found.expires_at_ms, True
        return found.credential

    def _final(self, text: str) -> str:
        credential = self._credential
        assert credential is not None
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationRefused(f"{self._mechanism}: its final message is not valid")
        if match["nonce"] != self._nonce:
            raise AuthenticationRefused(f"{self._mechanism}: the client sent another nonce")
        message = (self._messages + match["without_proof"]).encode()
        signature = hmac.digest(credential.stored_key, message, self._hash)
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error:
            proof = b""
        if len(proof) != len(signature):
            raise AuthenticationRefused(f"{self._mechanism}: its proof is not valid")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise AuthenticationRefused(
                f"{self._mechanism}: wrong password for {shown(self.claimed_name)}; if it was "
                "forgotten, set a new one with kafka-configs --alter --entity-type users"
            )
        self.is_complete = True
        final = hmac.digest(credential.server_key, message, self._hash)
        return "v=" + base64.b64encode(final).decode()
