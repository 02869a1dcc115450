"""PEM as a file, because OpenSSL reads private keys and revocation lists from files only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """A path with `content` until the end of the context. In memory where the system has such
    files, so that no private key is written to a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ottla-pem")
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("wb", suffix=".pem") as named:
        named.write(content)
        named.flush()
        yield named.name
