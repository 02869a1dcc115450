"""murmur2 and the default partitioner."""

import random
import struct

import pytest

from ottla.protocol.partitioner import DefaultPartitioner, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "value"),  # of org.apache.kafka.common.utils.Utils.murmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_hashes_of_java(data: bytes, value: int) -> None:
    assert murmur2(data) == value


def slow_murmur2(data: bytes) -> int:
    """The definition, a step at a time with signed arithmetic."""

    def signed(value: int) -> int:
        return int(struct.unpack(">i", (value & 0xFFFFFFFF).to_bytes(4, "big"))[0])

    def shifted(value: int, bits: int) -> int:
        return (value & 0xFFFFFFFF) >> bits

    value = signed(0x9747B28C ^ len(data))
    for start in range(0, len(data) // 4 * 4, 4):
        word = signed(int.from_bytes(data[start : start + 4], "little") * 0x5BD1E995)
        word = signed((word ^ shifted(word, 24)) * 0x5BD1E995)
        value = signed(value * 0x5BD1E995) ^ word
    rest = data[len(data) // 4 * 4 :]
    if rest:
        value = signed((value ^ int.from_bytes(rest, "little")) * 0x5BD1E995)
    value = signed((value ^ shifted(value, 13)) * 0x5BD1E995)
    return value ^ shifted(value, 15)


def test_hash_follows_the_definition() -> None:
    rng = random.Random(7)
    for size in range(70):
        data = rng.randbytes(size)
        assert murmur2(data) == slow_murmur2(data), data.hex()


def test_keys_choose_their_partition() -> None:
    assert partition_for_key(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10
    partitioner = DefaultPartitioner(choose=lambda count: 0)
    for key in (b"", b"a", b"foobar"):
        assert partitioner.partition("t", key, 50, 7, [1]) == partition_for_key(key, 7)


def test_records_without_keys_stick_until_a_batch_is_full() -> None:
    chosen = iter([3, 1, 4])
    partitioner = DefaultPartitioner(batch_size=100, choose=lambda count: next(chosen))
    found = [partitioner.partition("t", None, 40, 5) for _ in range(8)]
    assert found == [3, 3, 3, 1, 1, 1, 4, 4]


def test_topics_stick_on_their_own() -> None:
    chosen = iter([0, 2, 1])
    partitioner = DefaultPartitioner(batch_size=100, choose=lambda count: next(chosen))
    found = [partitioner.partition(topic, None, 60, 5) for topic in ("a", "b", "a", "b", "a")]
    assert found == [0, 2, 0, 2, 1]


def test_only_partitions_with_a_leader_are_chosen() -> None:
    seen: list[int] = []

    def choose(count: int) -> int:
        seen.append(count)
        return count - 1

    partitioner = DefaultPartitioner(batch_size=1000, choose=choose)
    assert partitioner.partition("t", None, 10, 6, [2, 5]) == 5
    assert partitioner.partition("t", None, 10, 6, [2]) == 2  # 5 has lost its leader
    assert partitioner.partition("t", None, 10, 6, []) == 2
    assert partitioner.partition("other", None, 10, 6, []) == 5
    assert seen == [2, 1, 6]


def test_a_topic_may_shrink_or_keys_be_ignored() -> None:
    partitioner = DefaultPartitioner(ignore_keys=True, choose=lambda count: count - 1)
    assert partitioner.partition("t", b"key", 10, 9) == 8
    assert partitioner.partition("t", b"key", 10, 3) == 2


def test_choice_is_random_by_default() -> None:
    found = {DefaultPartitioner().partition("t", None, 1, 1000) for _ in range(20)}
    assert len(found) > 1
    assert all(0 <= partition < 1000 for partition in found)
