import pytest

from ottla.broker.net import wrong_protocol
from ottla.broker.net.wrong_protocol import (
    FOREIGN_SIZE,
    HTTP_METHODS,
    LogLimiter,
    explanation,
    http_response,
    recognise,
)


@pytest.mark.parametrize(
    ("first_bytes", "protocol"),
    [
        (b"GET ", "HTTP"),
        (b"DELE", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x15\x03\x03\x00", "a TLS alert"),
        (b"SSH-", "SSH"),
        (b"\x00\x00\x00\x10", None),
        (b"get ", None),
        (b"", None),
    ],
)
def test_recognise(first_bytes: bytes, protocol: str | None) -> None:
    assert recognise(first_bytes) == protocol
    if protocol is not None:
        assert "PLAINTEXT" in explanation(protocol, "PLAINTEXT") or protocol == "a TLS alert"


def test_only_sizes_from_foreign_size_on_can_be_of_another_protocol() -> None:
    smallest = min(
        int.from_bytes(first, "big")
        for first in (*HTTP_METHODS, b"SSH-", b"\x16\x03\x00\x00", b"\x15\x03\x00\x00")
    )
    assert smallest == FOREIGN_SIZE


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert b"bootstrap.servers=[::1]:9092 " in http_response("EXTERNAL", "::1", 9092)


class TestLogLimiter:
    def test_a_peer_gets_a_line_a_minute(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(wrong_protocol, "monotonic", lambda: now)
        limiter = LogLimiter()
        assert limiter.allows("a")
        assert limiter.allows("b")
        now += 59
        assert not limiter.allows("a")
        now += 1
        assert limiter.allows("a")
        assert not limiter.allows("a")

    def test_it_remembers_a_bounded_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wrong_protocol, "MAX_PEERS", 3)
        limiter = LogLimiter()
        for peer in "abcd":
            assert limiter.allows(peer)
        assert not limiter.allows("d")
        assert limiter.allows("a")  # forgotten to make room
        assert len(limiter._last) == 3
