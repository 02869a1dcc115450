"""Which codec and level settings request, and what that costs."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import RecordTooLargeError
from ottla.storage.config import LogConfig
from ottla.storage.records.codecs import (
    CODECS,
    check_size,
    compression_cost,
    level_of,
    target_codec,
)
from ottla.storage.records.validation_budget import KIB_COMPRESSED, KIB_COMPRESSED_WELL

LZ4 = read_header(build_batch([(0, None, b"v", [])], codec=CODECS["lz4"]))


def test_the_codec_of_the_producer_unless_one_is_set() -> None:
    assert target_codec(LogConfig(compression_type="producer"), LZ4) == CODECS["lz4"]
    assert target_codec(LogConfig(compression_type="uncompressed"), LZ4) == 0
    assert target_codec(LogConfig(compression_type="zstd"), LZ4) == CODECS["zstd"]


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_the_level_of_each_codec(name: str) -> None:
    config = LogConfig(**{f"compression_{name}_level": 7})
    assert level_of(config, CODECS[name]) == 7
    assert level_of(config, CODECS["snappy"]) is None
    assert compression_cost(config, CODECS[name]) == KIB_COMPRESSED_WELL
    assert compression_cost(config, CODECS["snappy"]) == KIB_COMPRESSED
    assert compression_cost(config, 0) == 0


def test_a_batch_that_is_too_large_after_compression() -> None:
    config = LogConfig(max_message_bytes=100)
    check_size(100, 1, config)
    with pytest.raises(RecordTooLargeError, match="101 bytes with gzip compression"):
        check_size(101, 1, config)
