"""Bounds what one client can write to the log: one line a minute for each address."""

from time import monotonic

# Keys remembered at once: more than enough for honest mistakes, small enough for a port scan.
MAX_KEYS = 1024
INTERVAL_SECONDS = 60.0


class LogLimiter:
    """Allows one log line for each key (such as a client's address) in `INTERVAL_SECONDS`."""

    __slots__ = ("_logged_at",)

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}  # the least recently logged first

    def allows(self, key: str) -> bool:
        """Whether a line for this key may be logged now; if so, its interval starts again."""
        now = monotonic()
        logged_at = self._logged_at.pop(key, None)
        if logged_at is not None and now - logged_at < INTERVAL_SECONDS:
            self._logged_at[key] = logged_at
            return False
        if len(self._logged_at) >= MAX_KEYS:
            del self._logged_at[next(iter(self._logged_at))]
        self._logged_at[key] = now
        return True
