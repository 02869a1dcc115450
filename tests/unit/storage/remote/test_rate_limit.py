from __future__ import annotations

from ottla.storage.remote.rate_limit import RateLimit


def test_bytes_take_their_time() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    limit = RateLimit(1000, lambda: now, sleep)
    limit.acquire(500)
    limit.acquire(2000)
    limit.acquire(1)
    assert slept == [0.5, 2.0]
    now += 60  # what was not used is not saved up
    limit.acquire(1000)
    limit.acquire(1000)
    assert slept == [0.5, 2.0, 1.0]
