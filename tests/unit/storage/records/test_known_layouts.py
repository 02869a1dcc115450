"""What is recognized is valid, and a batch like two before it is recognized."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.check import check_records
from ottla.protocol.records.errors import InvalidRecordError
from ottla.storage.records import known_layouts
from ottla.storage.records.batch_content import check_content
from ottla.storage.records.known_layouts import has_known_layout, learn_layout

TIME = 1_700_000_000_000
# A key and a value each: their lengths take one, two and three bytes.
SHAPES = ((None, b"v" * 20), (b"key", b"v" * 90), (b"", None), (b"k" * 70, b"v" * 9000))


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    known_layouts._layouts.clear()
    yield
    known_layouts._layouts.clear()


def content(count: int, key: bytes | None, value: bytes | None, step: int = 0) -> bytes:
    records = [(TIME + step * number, key, value, []) for number in range(count)]
    return bytes(build_batch(records)[61:])


def learned(data: bytes, count: int) -> bool:
    learn_layout(data, count)
    learn_layout(data, count)
    return has_known_layout(data, count)


@pytest.mark.parametrize("count", [1, 8, 63, 64, 65, 66, 300, 1024])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_third_batch_of_a_layout_is_recognized(
    count: int, shape: tuple[bytes | None, bytes | None]
) -> None:
    key, value = shape
    data = content(count, key, value)
    learn_layout(data, count)
    assert not has_known_layout(data, count)
    learn_layout(data, count)
    other = content(count, key and b"x" * len(key), value and b"y" * len(value))
    assert has_known_layout(other, count)
    assert has_known_layout(memoryview(b"before" + other)[6:], count)
    assert not has_known_layout(other, count + 1)
    assert not has_known_layout(other[:-1], count)


def test_timestamps_of_one_byte_may_differ() -> None:
    assert learned(content(20, None, b"v" * 90), 20)
    assert has_known_layout(content(20, None, b"v" * 90, step=3), 20)


def test_what_has_no_layout_is_left_to_the_other_check() -> None:
    assert not learned(content(20, None, b"v" * 90, step=100), 20)  # longer timestamps
    headers = bytes(build_batch([(TIME, None, b"v", [("h", b"x")])] * 20)[61:])
    assert not learned(headers, 20)
    lengths = bytes(build_batch([(TIME, None, b"v" * (n % 3), []) for n in range(20)])[61:])
    assert not learned(lengths, 20)
    assert not learned(content(1025, None, b"v"), 1025)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_recognized_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([1, 2, 9, 16, 64, 65, 130])
    key, value = rng.choice(SHAPES)
    valid = content(count, key, value)
    assert learned(valid, count)
    record = len(valid) // count
    recognized = 0
    for _ in range(200):
        data = bytearray(valid)
        for _ in range(rng.choice([1, 1, 2])):
            position = rng.randrange(len(data))
            if rng.random() < 0.7:  # near the fields that are no key and no value
                position = rng.randrange(count) * record + rng.randrange(-2, 10)
                position = min(max(position, 0), len(data) - 1)
            data[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        found = has_known_layout(memoryview(data), count)
        assert found == has_known_layout(bytes(data), count)
        try:
            check_records(bytes(data), 0, len(data), count)
        except InvalidRecordError:
            assert not found
        recognized += found
    assert recognized > 10


def test_a_changed_layout_is_learned_again() -> None:
    first, second = content(10, b"k" * 5, b"v" * 15), content(10, b"k" * 15, b"v" * 5)
    assert len(first) == len(second)
    assert learned(first, 10)
    assert not has_known_layout(second, 10)
    assert learned(second, 10)


def test_few_layouts_are_kept() -> None:
    for length in range(200):
        data = content(10, None, b"v" * length)
        assert learned(data, 10)
        assert len(known_layouts._layouts) <= known_layouts.MAX_LAYOUTS


@pytest.mark.parametrize("codec", [0, 1])
def test_a_batch_is_checked_by_its_layout(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bytearray(build_batch([(TIME, None, b"v" * 90, [])] * 20, codec=codec))
    for _ in range(2):
        check_content(batch, 0, len(batch), codec, 20, None)
    monkeypatch.setattr("ottla.storage.records.batch_content.check_records", None)
    check_content(batch, 0, len(batch), codec, 20, None)
    monkeypatch.undo()
    broken = bytearray(build_batch([(TIME, None, b"v" * 90, [])] * 20))
    broken[-1] = 2  # the last record claims a header
    with pytest.raises(InvalidRecordError):
        check_content(broken, 0, len(broken), 0, 20, None)
