"""The compression that the settings of a log request: which codec, what it costs, how large."""

from __future__ import annotations

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.compression import (
    DEFAULT_LZ4_LEVEL,
    DEFAULT_ZSTD_LEVEL,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    codec_name,
)
from ottla.protocol.records.errors import RecordTooLargeError
from ottla.storage.config import LogConfig
from ottla.storage.records.validation_budget import KIB_COMPRESSED, KIB_COMPRESSED_WELL

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
KEEP_CODEC = "producer"


def target_codec(config: LogConfig, header: BatchHeader) -> int:
    """The codec with which a batch is stored."""
    if config.compression_type == KEEP_CODEC or header.is_control:
        return header.codec
    return CODECS[config.compression_type]


def level_of(config: LogConfig, codec: int) -> int | None:
    """The level of a codec, None for one without levels."""
    if codec == GZIP:
        return config.compression_gzip_level
    if codec == LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == ZSTD else None


def compression_cost(config: LogConfig, codec: int) -> int:
    """The cost of compressing one KiB, in units of `validation_budget`."""
    if not codec:
        return 0
    level = level_of(config, codec)
    usual = {SNAPPY: None, LZ4: DEFAULT_LZ4_LEVEL, ZSTD: DEFAULT_ZSTD_LEVEL}
    return KIB_COMPRESSED if codec in usual and usual[codec] == level else KIB_COMPRESSED_WELL


def check_size(size: int, codec: int, config: LogConfig) -> None:
    """Raises RecordTooLargeError for a batch that is too large after compression."""
    if size > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch has {size} bytes with {codec_name(codec)} compression, more than"
            f" max.message.bytes={config.max_message_bytes}"
        )
