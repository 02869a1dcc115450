"""The client of Google Cloud Storage with the S3 server of moto behind it.

The client speaks Google's XML API. Its requests for objects, ranges, listings, multipart uploads
and deletions are those of S3, so that moto carries them out; tokens are not verified. The emulators
of Google Cloud Storage (fake-gcs-server, gcp-storage-emulator) have no uploads by the XML API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from tests.doubles.s3_server import BUCKET, PART_BYTES, S3Server, moto, proxied


class GcsServer(S3Server):
    bucket_setting = "storage.gcs.bucket.name"
    short_timeouts: ClassVar[Mapping[str, str]] = {}  # there are no such settings
    # A signature of S3 for the token, which moto does not verify.
    replaced_headers: ClassVar[Mapping[str, str]] = {
        "authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"
    }

    def settings(self, **more: str) -> dict[str, str]:
        # A key that says that no server exchanges it for a token.
        key = {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
        return {
            "storage.backend.class": "gcs",
            "chunk.size": "1048576",
            "storage.gcs.bucket.name": BUCKET,
            "storage.gcs.endpoint.url": f"http://127.0.0.1:{self.port}",
            "storage.gcs.credentials.json": json.dumps(key),
            "storage.gcs.resumable.upload.chunk.size": str(PART_BYTES),
            **more,
        }


@contextmanager
def gcs_on_moto() -> Iterator[GcsServer]:
    """With an empty bucket."""
    with moto() as port, proxied(GcsServer(port)) as server:
        yield server
