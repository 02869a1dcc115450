"""Frames of lz4 put together from raw blocks."""

import random

import cramjam
import lz4.frame
import pytest

from ottla.protocol.records.lz4_blocks import BLOCK_BYTES, frame_of_blocks


def compress_block(content: memoryview) -> bytes:
    return bytes(cramjam.lz4.compress_block(content, store_size=False))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_the_library_of_lz4_reads_them(size: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size)):
        frame = frame_of_blocks(data, compress_block)
        assert lz4.frame.decompress(frame) == data
        assert not lz4.frame.get_frame_info(frame)["block_linked"]


def test_a_block_that_does_not_get_shorter_is_stored() -> None:
    data = random.Random(1).randbytes(BLOCK_BYTES)
    assert len(frame_of_blocks(data, compress_block)) < BLOCK_BYTES + 20
