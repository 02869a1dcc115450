"""The keys of a compaction."""

from hashlib import md5

import pytest

from ottla.storage.cleaner.offset_map import BYTES_PER_KEY, OffsetMap


def test_the_newest_offset_of_each_key() -> None:
    offsets = OffsetMap(100 * BYTES_PER_KEY)
    long = b"a key of more than thirty-two bytes, so"
    assert offsets.put_all([b"a", long, b"a", None, b"b"], [0, 1, 2, 3, 4], from_offset=0)
    assert [offsets.newest(key) for key in (b"a", long, b"b", b"c")] == [2, 1, 4, -1]
    assert len(offsets) == 3


def test_long_keys_are_kept_as_their_digest() -> None:
    offsets = OffsetMap(100 * BYTES_PER_KEY)
    long = [b"k" * length for length in (32, 33, 5000)]
    offsets.put_all(list(long), [5, 6, 7], from_offset=0)
    assert [offsets.newest(key) for key in long] == [5, 6, 7]
    assert [type(key) for key in offsets.offsets] == [bytes, int, int]
    assert offsets.newest(md5(long[1]).digest()) == -1, "a digest is no key"


def test_records_below_the_start_are_skipped() -> None:
    offsets = OffsetMap(100 * BYTES_PER_KEY)
    offsets.put_all([b"a", b"b"], [4, 5], from_offset=5)
    assert (offsets.newest(b"a"), offsets.newest(b"b")) == (-1, 5)


def test_it_says_when_it_is_full_but_known_keys_still_fit() -> None:
    offsets = OffsetMap(2 * BYTES_PER_KEY)
    assert offsets.put_all([b"a", b"b", b"a"], [0, 1, 2], from_offset=0)
    assert not offsets.put_all([b"a", b"c"], [3, 4], from_offset=0)
    assert offsets.newest(b"a") == 3
    assert offsets.newest(b"c") == -1


def test_no_memory_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="too few"):
        OffsetMap(10)
