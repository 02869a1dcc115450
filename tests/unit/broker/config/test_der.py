from __future__ import annotations

import pytest

from ottla.broker.config.der import children, value_of


def test_elements_of_a_sequence() -> None:
    long = b"\x04\x82\x01\x00" + bytes(256)
    content = b"\x02\x01\x05" + long
    sequence = b"\x30\x82" + len(content).to_bytes(2, "big") + content
    assert children(value_of(sequence)) == [b"\x02\x01\x05", long]
    assert value_of(long) == bytes(256)


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x05\x00", b"\x30\x80\x00\x00", b"\x30\x85\x00", b"\x30\x82\x01"]
)
def test_what_is_cut_off(data: bytes) -> None:
    with pytest.raises(ValueError, match="DER"):
        value_of(data)
