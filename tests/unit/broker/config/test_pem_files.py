from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.pem_files import check_pem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xfe\xed\xfe\xed\x00\x00", "^x.location: .* is a Java key store .* x.type=PEM"),
        (b"\x30\x82\x04", "^x.location: .* looks like PKCS12.* openssl pkcs12 -in"),
        (None, "^x.location: .* cannot be read: No such file"),
    ],
)
def test_other_formats_than_pem_are_refused(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "store"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        check_pem("x", str(path))


def test_other_files_are_left_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_text("-----BEGIN CERTIFICATE-----")
    check_pem("x", str(path))
