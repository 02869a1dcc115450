"""Kerberos for kazoo, which authenticates to ZooKeeper with pure-sasl.

pure-sasl's own GSSAPI needs another Kerberos package, and a ticket in the cache of the system.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.client.sasl import GssapiMechanism, NewContext


class ZooKeeperMechanism:
    """What pure-sasl's client calls of a mechanism. Runs in a thread of kazoo, and may block."""

    def __init__(self, sasl: Any, new_context: NewContext) -> None:
        self.complete = False
        self._client = GssapiMechanism(new_context, sasl.host)
        self._began = False

    def process(self, challenge: bytes | None = None) -> bytes:
        """The next token. Raises AuthenticationError."""
        if not self._began:
            self._began = True
            return self._client.first()
        token = self._client.step(challenge or b"")
        # The server has the last word, an empty one.
        self.complete = self._client.has_chosen
        return token or b""

    def dispose(self) -> None:
        """Nothing of it is a secret."""


def register_gssapi() -> None:
    """pure-sasl uses this mechanism from now on."""
    from puresasl import mechanisms

    mechanisms.mechanisms["GSSAPI"] = ZooKeeperMechanism
