"""What SASL GSSAPI needs of a context of the GSS-API, of a client or of a broker."""

from collections.abc import Callable
from typing import Protocol


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
        """Protects the integrity of a message."""

    def unwrap(self, data: bytes) -> bytes:
        """Checks the integrity of a message."""


NewContext = Callable[[str], SecurityContext]
"""Makes the context for a host. May block."""
