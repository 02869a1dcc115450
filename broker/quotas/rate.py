"""Rates over a sliding window of samples, as Kafka measures them for quotas.

With 11 samples of one second (Kafka's quota.window.num and quota.window.size.seconds) a rate looks
back ten to twelve seconds: ten full samples, the one being filled, and the one that is just going.
Before so much time has passed it still divides by ten seconds at least, so a client that has just
come may send ten seconds' worth in its first burst, then pays for it. That is Kafka's behaviour,
to the millisecond, and what its users choose their quotas for.
"""

from collections import deque
from collections.abc import Hashable
from math import floor
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

# For each new rate two are checked, so that those that are idle go faster than others come.
_LOOKS = 2


class Rate:
    """A sum over recent time, divided by that time. Times are milliseconds on one clock."""

    __slots__ = ("_samples", "_total", "_window_count", "_window_ms")

    def __init__(self, *, window_count: int = 11, window_ms: int = 1000) -> None:
        if window_count < 1 or window_ms < 1:
            raise ValueError("a rate needs at least one window of at least 1 ms")
        self._window_count = window_count
        self._window_ms = window_ms
        # The oldest first: [when it began, its sum, when something was last added to it].
        self._samples: deque[list[float]] = deque()
        self._total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Add to the sum; a negative value takes back what was recorded by mistake."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            self._forget_old(now_ms)
            samples.append([now_ms, 0.0, now_ms])
        sample = samples[-1]
        sample[1] += value
        sample[2] = now_ms
        self._total += value

    def per_second(self, now_ms: int) -> float:
        """The rate, seen from now."""
        self._forget_old(now_ms)
        return self._total * 1000 / self._covered_ms(now_ms)

    def throttle_ms(self, limit_per_second: float, now_ms: int) -> int:
        """The time to stay silent until the rate is down to the limit; 0 if it is below."""
        self._forget_old(now_ms)
        covered_ms = self._covered_ms(now_ms)
        rate = self._total / (covered_ms / 1000)  # as Kafka, also in the last digit
        if rate <= limit_per_second:
            return 0
        if limit_per_second <= 0:
            return self._window_ms * self._window_count
        return floor((rate - limit_per_second) / limit_per_second * covered_ms + 0.5)

    def is_idle(self, now_ms: int) -> bool:
        """Nothing of what was recorded counts any more."""
        self._forget_old(now_ms)
        return not self._samples

    def _forget_old(self, now_ms: int) -> None:
        """Drop the samples to which nothing was added within all windows; one that began before
        them and reaches into them still counts, as a whole."""
        samples = self._samples
        oldest_ms = now_ms - self._window_count * self._window_ms
        while samples and samples[0][2] <= oldest_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0  # no rounding errors are carried on

    def _covered_ms(self, now_ms: int) -> float:
        """The time that the sum covers: whole windows that are missing at first are added."""
        elapsed = now_ms - self._samples[0][0] if self._samples else 0
        missing = self._window_count - 1 - int(elapsed // self._window_ms)
        if missing > 0:
            elapsed += missing * self._window_ms
        return max(elapsed, 1)


def forget_idle(rates: dict[K, Rate], now_ms: int) -> None:
    """Remove idle rates, of a few that were not checked for the longest time: a client that
    makes up names must not have all rates checked for each of them."""
    for _ in range(min(_LOOKS, len(rates))):
        key = next(iter(rates))
        rate = rates.pop(key)
        if not rate.is_idle(now_ms):
            rates[key] = rate  # the last one from now on


class SimpleRate(Rate):
    """A rate over the time since the first sample that counts, of at least one window.

    Unlike `Rate` it grants no burst at the start. Kafka's `SimpleRate`, which throttles replication
    and remote storage.
    """

    __slots__ = ()

    def _covered_ms(self, now_ms: int) -> float:
        elapsed = now_ms - self._samples[0][0] if self._samples else 0
        return max(elapsed, self._window_ms)


class TokenBucket:
    """Tokens that come at a steady rate, up to a burst; taking may go below zero.

    Unlike a windowed rate it does not make a client that did much at once wait for the whole
    window: it waits until the debt is paid (KIP-599). It starts full.
    """

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None  # full, however much that is
        self._updated_ms = 0

    def take(self, count: float, rate_per_second: float, burst: float, now_ms: int) -> None:
        """Take tokens, whether they are there or not."""
        self._tokens = self._refilled(rate_per_second, burst, now_ms) - count

    def wait_ms(self, rate_per_second: float, burst: float, now_ms: int) -> int:
        """Milliseconds until the bucket is out of debt; 0 if it is not in debt."""
        tokens = self._refilled(rate_per_second, burst, now_ms)
        if tokens >= 0:
            return 0
        if rate_per_second <= 0:
            return 2**31 - 1
        return round(-tokens / rate_per_second * 1000)

    def _refilled(self, rate_per_second: float, burst: float, now_ms: int) -> float:
        tokens = burst
        if self._tokens is not None:
            gained = rate_per_second * max(now_ms - self._updated_ms, 0) / 1000
            tokens = min(burst, self._tokens + gained)
        self._tokens = tokens
        self._updated_ms = now_ms
        return tokens
