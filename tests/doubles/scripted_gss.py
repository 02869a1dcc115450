"""Security contexts without Kerberos: what one side makes, the other one understands."""

from __future__ import annotations

from ottla.protocol.client.errors import AuthenticationError


class ScriptedContext:
    """Satisfies `SecurityContext`; `principal` is that of the client."""

    def __init__(self, principal: str = "", *, is_client: bool, mutual: bool = True) -> None:
        self.initiator = principal
        self.complete = False
        self._is_client = is_client
        self._mutual = mutual

    def step(self, token: bytes | None) -> bytes:
        if self._is_client:
            if token is None:
                self.complete = not self._mutual
                return b"request:" + self.initiator.encode()
            if token != b"reply":
                raise AuthenticationError("the reply is not from the KDC's service")
            self.complete = True
            return b""
        kind, _, principal = (token or b"").partition(b":")
        if kind != b"request":
            raise AuthenticationError("Invalid token was supplied")
        self.initiator = principal.decode()
        self.complete = True
        return b"reply" if self._mutual else b""

    def wrap(self, data: bytes) -> bytes:
        return b"wrapped:" + data

    def unwrap(self, data: bytes) -> bytes:
        kind, _, content = data.partition(b":")
        if kind != b"wrapped":
            raise AuthenticationError("A token had an invalid Message Integrity Check")
        return content
