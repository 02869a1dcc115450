from __future__ import annotations

import sys

import obstore
import pytest
from obstore.store import MemoryStore

from ottla.storage.remote.cloud_object_store import CloudObjectStore, open_cloud_object_store
from ottla.storage.remote.store_settings import RemoteStorageSettingsError, parse_store_settings

S3 = {
    "storage.backend.class": "s3",
    "chunk.size": "1024",
    "storage.s3.bucket.name": "bucket",
    "storage.s3.region": "eu-north-1",
}
GCS = {"storage.backend.class": "gcs", "chunk.size": "1024", "storage.gcs.bucket.name": "bucket"}
AZURE = {
    "storage.backend.class": "azure",
    "chunk.size": "1024",
    "storage.azure.container.name": "container",
    "storage.azure.account.name": "account",
}


@pytest.mark.parametrize(
    "settings",
    [
        S3,
        {
            **S3,
            "storage.s3.endpoint.url": "http://127.0.0.1:9000",
            "storage.s3.path.style.access.enabled": "true",
            "storage.s3.api.call.timeout": "1000",
            "storage.s3.api.call.attempt.timeout": "100",
            "storage.aws.access.key.id": "id",
            "storage.aws.secret.access.key": "secret",
            "storage.aws.session.token": "token",
            "storage.aws.certificate.check.enabled": "false",
        },
        GCS,
        AZURE,
        {**AZURE, "storage.azure.account.key": "a2V5"},
    ],
)
def test_a_store_is_opened_without_a_request(settings: dict[str, str]) -> None:
    open_cloud_object_store(parse_store_settings(settings)).close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**S3, "storage.s3.bucket.name": ""}, r"storage\.s3\.bucket\.name is not set"),
        ({**S3, "storage.aws.access.key.id": "id"}, r"aws\.secret\.access\.key is not set"),
        ({**S3, "storage.s3.api.call.timeout": "soon"}, r"s3\.api\.call\.timeout is 'soon'"),
        ({**S3, "storage.s3.path.style.access.enabled": "1"}, "expected true or false"),
        ({**GCS, "storage.gcs.credentials.json": "{"}, "settings of the store gcs are invalid"),
        ({**AZURE, "storage.azure.account.name": ""}, r"azure\.account\.name is not set"),
    ],
)
def test_invalid_settings(settings: dict[str, str], message: str) -> None:
    with pytest.raises(RemoteStorageSettingsError, match=message):
        open_cloud_object_store(parse_store_settings(settings))


def test_without_the_package_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RemoteStorageSettingsError, match=r"pip install 'ottla\[tiered\]'"):
        open_cloud_object_store(parse_store_settings(S3))


def test_a_chunk_is_not_copied() -> None:
    """A copy of some MB would hold the GIL, and with it the event loop."""
    store = CloudObjectStore(obstore, MemoryStore(), 1 << 20)
    store.put("segment.log", [b"0123", b"456789"])
    found = store.get_range("segment.log", 2, 5)
    assert bytes(found) == b"23456"
    assert isinstance(found.obj, obstore.Bytes)
    assert store.get("segment.log", 10) == b"0123456789"
