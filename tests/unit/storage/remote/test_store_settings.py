from __future__ import annotations

import pytest

from ottla.storage.remote.store_settings import (
    DEFAULT_CACHE_BYTES,
    FILE_SYSTEM,
    S3,
    RemoteStorageSettingsError,
    parse_store_settings,
)

LOCAL = {"storage.backend.class": "filesystem", "chunk.size": "4194304", "storage.root": "/data"}
AIVEN = "io.aiven.kafka.tieredstorage"


def test_the_least_settings() -> None:
    settings = parse_store_settings(LOCAL)
    assert settings.backend == FILE_SYSTEM
    assert settings.chunk_size == 4194304
    assert settings.key_prefix == ""
    assert settings.cache_bytes == DEFAULT_CACHE_BYTES
    assert settings.custom_metadata_fields == ()
    assert settings.storage == {"root": "/data"}


def test_settings_of_the_plugin() -> None:
    settings = parse_store_settings({
        "storage.backend.class": f"{AIVEN}.storage.s3.S3Storage",
        "chunk.size": "1048576",
        "key.prefix": "cluster/",
        "key.prefix.mask": "true",
        "compression.enabled": "true",
        "compression.heuristic.enabled": "true",
        "custom.metadata.fields.include": "REMOTE_SIZE, OBJECT_KEY",
        "upload.rate.limit.bytes.per.second": "10485760",
        "fetch.chunk.cache.class": f"{AIVEN}.fetch.cache.MemoryChunkCache",
        "fetch.chunk.cache.size": "1048576000",
        "fetch.chunk.cache.prefetch.max.size": "16777216",
        "fetch.indexes.cache.size": "1000",
        "storage.s3.bucket.name": "bucket",
        "storage.s3.region": "eu-north-1",
        "storage.s3.multipart.upload.part.size": "10485760",
    })  # fmt: skip
    assert settings.backend == S3
    assert settings.compression
    assert settings.compression_heuristic
    assert settings.custom_metadata_fields == ("REMOTE_SIZE", "OBJECT_KEY")
    assert settings.upload_bytes_per_second == 10485760
    assert settings.cache_bytes == 1048576000
    assert settings.prefetch_bytes == 16777216
    assert settings.part_bytes == 10485760
    assert settings.storage["s3.region"] == "eu-north-1"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"storage.backend.class": "Other"}, r"storage\.backend\.class is 'Other'"),
        ({"chunk.size": "1"}, r"chunk\.size is '1', expected a number from 1024"),
        ({"chunk.size": "many"}, r"chunk\.size is 'many'"),
        ({"compression.enabled": "yes"}, r"compression\.enabled is 'yes'"),
        ({"compression.heuristic.enabled": "true"}, r"compression\.enabled must be true"),
        ({"encryption.enabled": "true"}, "encryption is not supported"),
        ({"encryption.key.pair.id": "k"}, "encryption is not supported"),
        ({"segment.format": "iceberg"}, "only kafka is supported"),
        ({"iceberg.namespace": "n"}, "Iceberg tables are not supported"),
        ({"storage.proxy.host": "h"}, "SOCKS5 proxies are not supported"),
        ({"fetch.chunk.cache.class": f"{AIVEN}.fetch.cache.DiskChunkCache"}, "is in memory"),
        ({"fetch.chunk.cache.path": "/cache"}, "on disk is not supported"),
        ({"fetch.chunk.cache.size": "-1"}, r"cache\.size is '-1'"),
        ({"custom.metadata.fields.include": "OTHER"}, "has 'OTHER'"),
        ({"storage.s3.region": "r"}, r"has no effect with storage\.backend\.class=filesystem"),
        ({"chunk.sise": "1"}, r"chunk\.sise is not known"),
        ({"upload.rate.limit.bytes.per.second": "1"}, "expected a number from 1048576"),
    ],
)
def test_what_is_unknown_or_not_supported_is_refused(more: dict[str, str], message: str) -> None:
    with pytest.raises(RemoteStorageSettingsError, match=message):
        parse_store_settings({**LOCAL, **more})


@pytest.mark.parametrize("name", ["storage.backend.class", "chunk.size"])
def test_what_is_needed(name: str) -> None:
    with pytest.raises(RemoteStorageSettingsError, match=f"{name} is not set"):
        parse_store_settings({key: value for key, value in LOCAL.items() if key != name})


def test_storage_classes_are_refused() -> None:
    settings = {
        "storage.backend.class": "s3",
        "chunk.size": "1024",
        "storage.s3.storage.class": "GLACIER",
    }
    with pytest.raises(RemoteStorageSettingsError, match="only STANDARD is supported"):
        parse_store_settings(settings)
