"""The remote storage with an S3 server, and what becomes of segments when the server fails. With
OTTLA_TEST_STORE it is another store (`object_stores`)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from uuid import UUID

import pytest

from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import StoreNotProvenError
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import (
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from ottla.storage.remote.segments import LogSegmentData
from tests.doubles.object_stores import object_store
from tests.doubles.remote_segments import INDEXES, segment_files, segment_metadata
from tests.doubles.s3_server import Fault, S3Server

# Two parts of an upload, seven chunks.
SIZE = 6 * 1024 * 1024 + 100
CONTENT = Random(1).randbytes(SIZE)
METADATA = segment_metadata(SIZE)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with object_store() as server:
        yield server


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Server]:
    server.faults = []
    yield server
    server.faults = []
    storage = open_remote_storage(server.settings())
    storage.store.delete([found.key for found in storage.store.list("")])


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> LogSegmentData:
    return segment_files(tmp_path_factory.mktemp("log"), CONTENT)


def opened(s3: S3Server, **settings: str) -> ObjectRemoteStorage:
    return open_remote_storage(s3.settings(**settings))


def test_a_segment_in_a_bucket(s3: S3Server, segment: LogSegmentData) -> None:
    storage = opened(s3, **{"key.prefix": "cluster/"})
    storage.copy_log_segment(METADATA, segment)
    assert storage.fetch_log_segment(METADATA, 0, SIZE) == CONTENT
    assert (
        opened(s3, **{"key.prefix": "cluster/"}).fetch_log_segment(METADATA, 5, 9) == CONTENT[5:9]
    )
    assert storage.fetch_index(METADATA, RemoteIndexType.OFFSET) == INDEXES["index"]
    assert list(verify_segment(storage, METADATA, read_content=True)) == []
    inventory = take_inventory(storage, [], 1 << 50)
    assert len(inventory.orphans) == 3
    storage.delete_log_segment(METADATA)
    storage.delete_log_segment(METADATA)
    assert take_inventory(storage, [], 1 << 50).orphans == []
    with pytest.raises(RemoteResourceNotFoundError):
        storage.fetch_index(METADATA, RemoteIndexType.OFFSET)
    storage.close()


def test_the_manifest_is_written_last_and_deleted_first(
    s3: S3Server, segment: LogSegmentData
) -> None:
    storage = opened(s3)
    s3.requests.clear()
    storage.copy_log_segment(METADATA, segment)
    written = [line for line in s3.requests if line.startswith(("PUT", "POST"))]
    assert written[-1].endswith(".rsm-manifest")
    assert written[-2].endswith(".indexes")
    s3.requests.clear()
    storage.delete_log_segment(METADATA)
    assert ".rsm-manifest" in s3.requests[0]
    assert ".log" not in s3.requests[0]


@pytest.mark.parametrize("wrong", [{"storage.s3.bucket.name": "missing"}, {"key.prefix": "other/"}])
def test_nothing_is_deleted_from_the_wrong_store(
    s3: S3Server, segment: LogSegmentData, wrong: dict[str, str]
) -> None:
    """S3 answers the deletion of a key that is not there with success, also in another bucket."""
    storage = open_remote_storage(s3.settings(), cluster_id="cluster")
    storage.prove([], is_unused=True)
    storage.copy_log_segment(METADATA, segment)
    other = open_remote_storage(s3.settings(**wrong), cluster_id="cluster")
    with pytest.raises(StoreNotProvenError, match="The bucket or container"):
        other.delete_log_segment(METADATA)
    with pytest.raises(StoreNotProvenError, match="ottla tiered adopt"):
        other.prove([METADATA], is_unused=False)
    storage.delete_log_segment(METADATA)
    storage.delete_log_segment(METADATA)


def test_a_bucket_that_does_not_exist(s3: S3Server, segment: LogSegmentData) -> None:
    storage = opened(s3, **{s3.bucket_setting: "missing"})
    with pytest.raises(RemoteStorageError, match=r"does not exist|denies access"):
        storage.copy_log_segment(METADATA, segment)
    with pytest.raises(RemoteStorageError, match="Cannot list"):
        take_inventory(storage, [], 0)


def test_a_read_with_a_truncated_body_is_repeated(s3: S3Server, segment: LogSegmentData) -> None:
    storage = opened(s3)
    storage.copy_log_segment(METADATA, segment)
    storage.fetch_index(METADATA, RemoteIndexType.OFFSET)  # the manifest is in memory
    s3.faults = [Fault.TRUNCATED]
    assert storage.fetch_log_segment(METADATA, 0, 100) == CONTENT[:100]


def test_a_read_with_changed_bytes_is_repeated_once(s3: S3Server, segment: LogSegmentData) -> None:
    storage = opened(s3)
    storage.copy_log_segment(METADATA, segment)
    storage.fetch_index(METADATA, RemoteIndexType.OFFSET)
    s3.faults = [Fault.CORRUPT]
    assert storage.fetch_log_segment(METADATA, 0, 100) == CONTENT[:100]
    s3.faults = [Fault.CORRUPT, Fault.CORRUPT]
    with pytest.raises(RemoteObjectCorruptError, match="wrong checksum"):
        storage.fetch_log_segment(METADATA, SIZE - 1, SIZE)


def test_a_store_that_does_not_respond_is_an_error_in_bounded_time(
    s3: S3Server, segment: LogSegmentData
) -> None:
    storage = opened(s3, **s3.short_timeouts)
    s3.faults = [Fault.STALLED] * 100
    with pytest.raises(RemoteStorageError, match="Cannot write the object"):
        storage.copy_log_segment(METADATA, segment)
    assert s3.faults  # it gave up before they ended


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_and_no_wrong_bytes_are_returned(
    s3: S3Server, segment: LogSegmentData, seed: int
) -> None:
    """Each request fails with a chance of one in five. A copy that returned is complete."""
    random = Random(seed)
    kinds = [Fault.UNAVAILABLE, Fault.LOST, Fault.TRUNCATED, Fault.CORRUPT]
    storage = opened(s3, **{"fetch.chunk.cache.size": "0"})
    copied = None
    for attempt in range(20):
        s3.faults = [random.choice([*kinds, *[None] * 4 * len(kinds)]) for _ in range(200)]
        metadata = segment_metadata(SIZE, segment_id=UUID(int=attempt + 1))
        try:
            storage.copy_log_segment(metadata, segment)
            copied = metadata
            break
        except RemoteStorageError:
            continue
    assert copied is not None
    reads = 0
    for _ in range(15):
        start = random.randrange(SIZE)
        end = min(SIZE, start + random.randrange(1, 2_000_000))
        try:
            storage.read_manifest(copied)
            assert storage.fetch_log_segment(copied, start, end) == CONTENT[start:end]
            reads += 1
        except RemoteStorageError:
            continue
    assert reads > 5
    s3.faults = []
    assert list(verify_segment(storage, copied, read_content=True)) == []
    delete_orphans(storage, take_inventory(storage, [copied], 1 << 50).orphans)
    inventory = take_inventory(storage, [copied], 1 << 50)
    assert (inventory.live_objects, inventory.orphans, inventory.foreign) == (3, [], 0)


def test_wrong_credentials_are_one_sentence(
    s3: S3Server,
) -> None:
    storage = opened(s3)
    for call in (
        lambda: storage.store.get_range("a", 0, 1),
        lambda: storage.store.put("a", [b"b"]),
        lambda: list(storage.store.list("")),
    ):
        s3.requests.clear()
        s3.faults = [Fault.DENIED] * 9
        with pytest.raises(RemoteStorageError) as raised:
            call()
        assert str(raised.value).endswith(
            "the store denies access (SignatureDoesNotMatch). Check the credentials and what they"
            " allow"
        )
        assert len(s3.requests) <= 2, "it is not repeated"
    s3.faults = [Fault.DENIED]
    with pytest.raises(RemoteStorageError, match=r"denies access \(403 Forbidden\)"):
        storage.store.size("a")  # the response has no body
