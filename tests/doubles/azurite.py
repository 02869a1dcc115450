"""Azurite, Microsoft's emulator of Azure Blob Storage, as a process. Needs Node.js and npm, and
installs itself into .cache once (190 MB)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar

from tests.doubles.eventually import eventually, is_listening
from tests.doubles.s3_server import BUCKET, PART_BYTES, S3Server, proxied
from tests.doubles.seaweedfs import free_ports

VERSION = "3.35.0"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / f"azurite-{VERSION}"
# A name and a key that Microsoft documents: those of each emulator.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
API_VERSION = "2021-12-02"


class AzuriteServer(S3Server):
    bucket_setting = "storage.azure.container.name"
    short_timeouts: ClassVar[Mapping[str, str]] = {}  # there are no such settings

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "storage.backend.class": "azure",
            "chunk.size": "1048576",
            "storage.azure.container.name": BUCKET,
            "storage.azure.account.name": ACCOUNT,
            "storage.azure.account.key": KEY,
            "storage.azure.endpoint.url": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "storage.azure.upload.block.size": str(PART_BYTES),
            **more,
        }

    def create_bucket(self) -> None:
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}
        path = f"/{ACCOUNT}/{BUCKET}"
        signed = "\n".join((
            *("PUT", *[""] * 11),
            *(f"{name}:{text}" for name, text in sorted(headers.items())),
            f"/{ACCOUNT}{path}",
            "restype:container",
        ))  # fmt: skip
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        self.send("PUT", f"{path}?restype=container", headers=headers)


def install() -> Path:
    """The program, downloaded once."""
    program = CACHE / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        assert npm is not None, "Azurite needs Node.js with npm"
        CACHE.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(CACHE)]
        subprocess.run([npm, "install", *options, f"azurite@{VERSION}"], check=True)
    return program


@contextmanager
def azurite() -> Iterator[AzuriteServer]:
    """With an empty container."""
    with tempfile.TemporaryDirectory(prefix="azurite") as directory:
        (port,) = free_ports(1)
        command = [
            *(str(install()), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--location", directory, "--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        ]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            eventually(lambda: is_listening(port), "Azurite does not listen", seconds=120)
            with proxied(AzuriteServer(port)) as server:
                yield server
        finally:
            process.kill()
            process.wait()
