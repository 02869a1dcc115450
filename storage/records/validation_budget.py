"""A limit of the work on individual records, so that validation does not block the event loop.

Callers on the event loop pass a `ValidationBudget`. Work that exceeds it raises
`ValidationBudgetExceeded`, before it starts or early, and is repeated in a worker thread without a
budget. The units are about microseconds of an ordinary core. They need not be exact, but must not
be far too low.
"""

from __future__ import annotations

# Far below the 50 ms that count as a stall of the event loop, far above the cost of a usual batch
# (16 KiB, some hundred records).
DEFAULT_BUDGET = 10_000

RECORD_CHECKED = 1  # by `ottla.protocol.records.check`
RECORD_FOUND = 2  # collected by `walk_records`
RECORD_REBUILT = 6  # decoded and encoded again
MESSAGE_BYTES = 34  # the minimum of a message of magic 0 or 1: limits their number
KIB_DECOMPRESSED = 4  # gzip is the slowest
KIB_COMPRESSED = 4
KIB_COMPRESSED_WELL = 100  # gzip, and levels other than the default


class ValidationBudgetExceeded(Exception):
    """The work on the records exceeds the budget. Nothing has been changed."""


class ValidationBudget:
    """The remaining budget of one request, or of one iteration of the event loop."""

    __slots__ = ("left",)

    def __init__(self, left: int = DEFAULT_BUDGET) -> None:
        self.left = left

    def spend(self, cost: int) -> None:
        """Subtract `cost`. Raises ValidationBudgetExceeded when less is left."""
        if cost > self.left:
            raise ValidationBudgetExceeded
        self.left -= cost

    @property
    def decompressed_bytes(self) -> int:
        """How many bytes the remaining budget allows to decompress."""
        return (self.left << 10) // KIB_DECOMPRESSED


class MemoryOnly(ValidationBudget):
    """Of a worker thread: any work, but no more decompressed bytes than it has memory for."""

    __slots__ = ("_bytes",)

    def __init__(self, decompressed_bytes: int) -> None:
        super().__init__(1 << 62)
        self._bytes = decompressed_bytes

    @property
    def decompressed_bytes(self) -> int:
        return self._bytes
