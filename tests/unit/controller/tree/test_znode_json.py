"""Values out of JSON payloads, or an error that names the path."""

from __future__ import annotations

import pytest

from ottla.controller.tree.znode_json import (
    MalformedZnode,
    decode_json,
    encode_json,
    integer,
    integers,
    json_object,
    whole_number,
)


def test_objects_come_back() -> None:
    payload = {"a": 1, "b": ["\u00fc"], "c": None}
    assert encode_json(payload) == '{"a":1,"b":["\u00fc"],"c":null}'.encode()
    assert decode_json("/p", encode_json(payload)) == payload


# Half of a surrogate pair, in both forms, can be read and not be sent to anybody.
HALVES = [b'{"a":["\\ud800"]}', b'{"\\uDFFF":1}', b'{"a":"\xed\xa0\x80"}']


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"\xff", b"{" * 50, *HALVES])
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(MalformedZnode, match="/p"):
        decode_json("/p", data)


def test_whole_pairs_of_surrogates() -> None:
    assert decode_json("/p", b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_values() -> None:
    payload: dict[str, object] = {"n": 3, "t": "4", "x": "x", "b": True, "f": 1.5, "none": None}
    assert integer("/p", payload, "n") == 3
    assert integer("/p", payload, "t") == 4
    for key in ("x", "b", "f", "none", "missing"):
        with pytest.raises(MalformedZnode, match="/p"):
            integer("/p", payload, key)
    assert whole_number("/p", payload, "n", 3, 3) == 3
    for least, most in ((4, 9), (0, 2)):
        with pytest.raises(MalformedZnode, match="/p"):
            whole_number("/p", payload, "n", least, most)
    assert integers("/p", [1, 2]) == (1, 2)
    for wrong in (None, {}, ["1"], [True], [1.0]):
        with pytest.raises(MalformedZnode, match="/p"):
            integers("/p", wrong)
    assert json_object("/p", {"a": 1}) == {"a": 1}
    with pytest.raises(MalformedZnode, match="/p"):
        json_object("/p", [])
