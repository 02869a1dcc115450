"""How much work on single records a caller has time for.

Whoever runs on the broker's loop gives an `ValidationBudget` along; what would take longer is not
begun, or given up early, with `TooMuchAtOnce`, and done again in a worker thread without one. The
units are about microseconds of an ordinary core; they need not be exact, only never far too small.
"""

from __future__ import annotations

# Short against the 50 ms that count as a stall of the loop, long against the records of a usual
# batch (16 KiB, some hundred records).
AT_ONCE = 10_000

RECORD_FOUND = 2  # whole, its key and timestamp looked at: see `ottla.storage.records.record_walk`
RECORD_REBUILT = 6  # taken apart and encoded again
MESSAGE_BYTES = 34  # the least that a message of magic 0 or 1 takes, so how many there may be
KIB_DECOMPRESSED = 4  # gzip is the slowest
KIB_COMPRESSED = 4
KIB_COMPRESSED_WELL = 100  # gzip, and levels that somebody has chosen


class TooMuchAtOnce(Exception):
    """The records take longer to look at than there is time for. Nothing has been changed."""


class ValidationBudget:
    """What is left of it; for one request, or whatever is one turn of the loop."""

    __slots__ = ("left",)

    def __init__(self, left: int = AT_ONCE) -> None:
        self.left = left

    def spend(self, cost: int) -> None:
        """Takes `cost` away; TooMuchAtOnce when there is not so much left."""
        if cost > self.left:
            raise TooMuchAtOnce
        self.left -= cost

    @property
    def decompressed_bytes(self) -> int:
        """As many bytes as may still come out of a decompressor."""
        return (self.left << 10) // KIB_DECOMPRESSED
