import pytest

from ottla.broker.runtime import log_limiter
from ottla.broker.runtime.log_limiter import LogLimiter


def test_a_key_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(log_limiter, "monotonic", lambda: now)
    limiter = LogLimiter()
    assert limiter.allows("a")
    assert limiter.allows("b")
    now += 59
    assert not limiter.allows("a")
    now += 1
    assert limiter.allows("a")
    assert not limiter.allows("a")


def test_it_remembers_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limiter, "MAX_KEYS", 3)
    limiter = LogLimiter()
    for key in "abcd":
        assert limiter.allows(key)
    assert not limiter.allows("d")
    assert limiter.allows("a")  # forgotten to make room
    assert len(limiter._logged_at) == 3
