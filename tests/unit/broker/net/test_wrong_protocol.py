import pytest

from ottla.broker.net.invalid_frames import (
    FOREIGN_SIZE,
    HTTP_METHODS,
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
