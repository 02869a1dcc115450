"""Which partition each row of an Arrow batch goes to, for all rows at once.

A row's own partition column wins; else the key decides, by the murmur2 hash of Java's clients; rows
without a key stay together in runs of about a batch, each in another partition than the one before.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.protocol.partitioner import murmur2
from pyspark_ottla.read.columns import Bytes, Longs

Array = Any

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
# All keys are hashed together, four bytes a round; longer ones are hashed one by one instead.
KEY_BYTES_TOGETHER_MAX = 256


def murmur2_many(data: Bytes, start: Longs, length: Longs) -> npt.NDArray[np.uint32]:
    """The hash of every `data[start:start + length]`, as unsigned 32-bit numbers."""
    hashed = _SEED ^ length.astype(np.uint32)
    words = length >> 2
    active = np.flatnonzero(words)
    word = 0
    while active.size:
        at = start[active] + 4 * word
        mixed = data[at].astype(np.uint32)
        for byte in (1, 2, 3):
            mixed |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        mixed *= _MULTIPLIER
        mixed ^= mixed >> np.uint32(24)
        mixed *= _MULTIPLIER
        hashed[active] = (hashed[active] * _MULTIPLIER) ^ mixed
        word += 1
        active = active[words[active] > word]
    rest = length & 3
    at = start + 4 * words
    for byte in (2, 1, 0):
        some = np.flatnonzero(rest > byte)
        hashed[some] ^= data[at[some] + byte].astype(np.uint32) << np.uint32(8 * byte)
    some = np.flatnonzero(rest)
    hashed[some] *= _MULTIPLIER
    hashed ^= hashed >> np.uint32(13)
    hashed *= _MULTIPLIER
    hashed ^= hashed >> np.uint32(15)
    return hashed


def hash_keys(keys: Array) -> npt.NDArray[np.uint32]:
    """The hash of every key of a binary array; of null, any number."""
    _, offset_buffer, data_buffer = keys.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[keys.offset :][: len(keys) + 1]
    start = bounds[:-1].astype(np.int64)
    length = np.diff(bounds).astype(np.int64)
    raw = np.frombuffer(data_buffer or b"", np.uint8)
    long = np.flatnonzero(length > KEY_BYTES_TOGETHER_MAX)
    together = length.copy()
    together[long] = 0
    hashed = murmur2_many(raw, start, together)
    for row in long.tolist():
        key = raw[start[row] : start[row] + length[row]].tobytes()
        hashed[row] = murmur2(key) & 0xFFFFFFFF
    return hashed


class Partitioner:
    """The partitioner of one task; keeps where rows without a key go on, topic by topic."""

    def __init__(self, run_bytes: int, seed: int | None = None) -> None:
        self._run_bytes = max(1, run_bytes)
        self._random = random.Random(seed)
        self._next: dict[str, int] = {}

    def choose(
        self, topic: str, partition_count: int, keys: Array, given: Array, sizes: Longs
    ) -> Longs:
        """The partition of each row; `given` are the rows' own partitions, null for none.

        `keys` and `given` may be None where there is no such column. What is in `given` is not
        checked against `partition_count`.
        """
        chosen = np.full(len(sizes), -1, np.int64)
        if given is not None:
            chosen = np.asarray(given.fill_null(-1)).astype(np.int64)
        if keys is not None:
            keyed = (chosen < 0) & np.asarray(keys.is_valid())
            if keyed.any():
                chosen[keyed] = ((hash_keys(keys) & 0x7FFFFFFF) % partition_count)[keyed]
        free = np.flatnonzero(chosen < 0)
        if free.size:
            chosen[free] = self._runs(topic, partition_count, sizes[free])
        return chosen

    def _runs(self, topic: str, partition_count: int, sizes: Longs) -> Longs:
        first = self._next.get(topic)
        if first is None:
            first = self._random.randrange(partition_count)
        runs = (np.cumsum(sizes) - sizes) // self._run_bytes
        # Runs of one call begin where those of the call before ended, so that all get their share.
        self._next[topic] = (first + int(runs[-1]) + 1) % partition_count
        chosen: Longs = (first + runs) % partition_count
        return chosen
