"""What the health checks share: exit codes, the reason, addresses, the bound of --timeout."""

from __future__ import annotations

HEALTHY = 0
UNHEALTHY = 1
USAGE_ERROR = 2
UNREACHABLE = 3

MAX_TIMEOUT_SECONDS = 2_147_483
"""Requests carry their time-out as a 32-bit number of milliseconds."""


class Unhealthy(Exception):
    """The reason in a sentence, with the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def from_here(host: str, port: str) -> str:
    """The address of a listener for this machine."""
    is_wildcard = host.strip("[]") in ("", "0.0.0.0", "::")
    return f"127.0.0.1:{port}" if is_wildcard else f"{host}:{port}"
