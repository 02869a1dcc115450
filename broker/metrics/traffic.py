"""What a broker has received and sent since its start."""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """Counts since the start of the broker; bytes are those on all listeners."""

    received_bytes: int
    sent_bytes: int
    requests: int
