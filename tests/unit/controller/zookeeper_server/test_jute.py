"""Jute: what is read back, and what is refused before anything is allocated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.tree.store import NULL_DATA, Acl
from ottla.controller.zookeeper_server import jute
from ottla.controller.zookeeper_server.jute import MarshallingError, Reader

ACLS = st.lists(st.builds(Acl, st.integers(0, 31), st.text(), st.text()), max_size=5)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.text(), ACLS)
def test_values_are_read_back(number: int, large: int, text: str, entries: list[Acl]) -> None:
    data = jute.int32(number) + jute.int64(large) + jute.string(text) + jute.acl(entries)
    data += jute.strings([text, text])
    reader = Reader(data)
    assert (reader.int32(), reader.int64(), reader.string()) == (number, large, text)
    assert reader.acl() == tuple(entries)
    assert reader.strings() == [text, text]
    assert reader.remaining == 0


def test_null_and_empty_data_differ() -> None:
    reader = Reader(jute.buffer(NULL_DATA) + jute.buffer(b""))
    assert reader.buffer() is NULL_DATA
    assert reader.buffer() is not NULL_DATA
    assert jute.buffer(NULL_DATA) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        jute.int32(5) + b"four",
        jute.int32(-2),
        jute.int32(2**31 - 1) + b"x" * 100,
        jute.buffer(b"\xff\xfe"),
    ],
)
def test_invalid_strings_are_refused(data: bytes) -> None:
    with pytest.raises(MarshallingError):
        Reader(data).string()


def test_the_count_of_a_vector_is_limited_by_its_bytes() -> None:
    with pytest.raises(MarshallingError, match="1000000 entries in 8 bytes"):
        Reader(jute.int32(1_000_000) + bytes(8)).strings()
    with pytest.raises(MarshallingError):
        Reader(jute.int32(2) + bytes(23)).acl()
    assert Reader(jute.int32(-1)).strings() == []


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (Reader.strings, Reader.acl, Reader.buffer, jute.read_multi_header):
        try:
            read(Reader(data))
        except MarshallingError:
            continue
