"""Keys and certificates in PEM (RFC 7468), in every form in which people write them.

Settings have them on one line, with lines joined by blanks or by nothing, with `\\n` or a
backslash where a line ended, with CRLF, a byte order mark or attributes. Kafka's
`DefaultSslEngineFactory` reads all of them that have white space behind each marker; OpenSSL reads
text in lines only.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import NamedTuple

# Longer rows of dashes are shortened first, or each of them would be tried as the start of a
# marker.
_DASHES = re.compile("-{11,}")
_MARKER = re.compile(r"-+\s*+(BEGIN|END)\s++([^-]{1,64}?)\s*-{1,5}", re.ASCII)
# What stands for the end of a line in a text of one line: \n and \r as two characters, and the
# backslash of a line that is continued.
_LINE_ENDS = re.compile(r"\\r\\n|\\n|\\r|\\(?=\s|$)|\\", re.ASCII)
_ENCRYPTION = re.compile(
    r"\s*Proc-Type:\s*4,\s*ENCRYPTED\s+DEK-Info:\s*([A-Za-z0-9-]+,[0-9A-Fa-f]+)", re.ASCII
)
_ATTRIBUTE = re.compile(r"[^\r\n]*:[^\r\n]*[\r\n]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")

_CERTIFICATES = {"CERTIFICATE": "CERTIFICATE", "X509 CERTIFICATE": "CERTIFICATE"}
_LINE_CHARACTERS = 64


class PemError(ValueError):
    """The words say what is wrong, and hold nothing of the content."""


class PemBlock(NamedTuple):
    """`encryption` is the algorithm and its parameter of an encrypted key in OpenSSL's own form."""

    label: str
    content: bytes
    encryption: str = ""

    def text(self) -> str:
        """The block as OpenSSL reads it."""
        body = base64.b64encode(self.content).decode()
        lines = [
            body[start : start + _LINE_CHARACTERS]
            for start in range(0, len(body), _LINE_CHARACTERS)
        ]
        header = ""
        if self.encryption:
            header = f"Proc-Type: 4,ENCRYPTED\nDEK-Info: {self.encryption}\n\n"
        return (
            f"-----BEGIN {self.label}-----\n{header}"
            + "\n".join(lines)
            + f"\n-----END {self.label}-----\n"
        )


def read_pem(text: str) -> list[PemBlock]:
    """All blocks in their order. Raises PemError."""
    plain = _DASHES.sub("-----", _LINE_ENDS.sub("\n", text.lstrip("\ufeff")))
    found: list[PemBlock] = []
    label, start = "", -1
    for marker in _MARKER.finditer(plain):
        name = " ".join(marker[2].split())
        if marker[1] == "BEGIN":
            if start >= 0:
                raise PemError(f"its block {label!r:.40} has no end")
            label, start = name, marker.end()
        elif name != label or start < 0:
            raise PemError(f"a block ends as {name!r:.40}, and begins as {label!r:.40}")
        else:
            found.append(_block(_CERTIFICATES.get(label, label), plain[start : marker.start()]))
            start = -1
    if start >= 0:
        raise PemError(f"its block {label!r:.40} has no end")
    return found


def _block(label: str, body: str) -> PemBlock:
    encryption = _ENCRYPTION.match(body)
    if encryption is not None:
        body = body[encryption.end() :]
    else:
        body = _ATTRIBUTE.sub("", body)
    characters = "".join(body.split())
    if not _BASE64.fullmatch(characters):
        raise PemError(f"its block {label!r:.40} has characters that are not base64")
    try:
        content = base64.b64decode(characters, validate=True)
    except binascii.Error:
        raise PemError(f"its block {label!r:.40} is not base64") from None
    return PemBlock(label, content, "" if encryption is None else encryption[1])


def _is_key(label: str) -> bool:
    return label.endswith("PRIVATE KEY")


def _is_certificate(label: str) -> bool:
    return label in ("CERTIFICATE", "TRUSTED CERTIFICATE")


def private_key(text: str) -> bytes:
    """The one private key of a text, as OpenSSL reads it. Raises PemError."""
    keys = _chosen(text, _is_key)
    if not keys:
        raise PemError("no PRIVATE KEY is found in it")
    if len(keys) != 1:
        raise PemError(f"one private key is expected, and {len(keys)} are found")
    return keys[0].text().encode()


def certificates(text: str) -> bytes:
    """The certificates of a text, as OpenSSL reads them. Raises PemError."""
    found = _chosen(text, _is_certificate)
    if not found:
        raise PemError("no CERTIFICATE is found in it")
    return "".join(each.text() for each in found).encode()


def keys_and_certificates(data: bytes) -> bytes:
    """The private key and the chain of a file, as OpenSSL reads them. Raises PemError."""
    text = _decoded(data)
    return private_key(text) + certificates(text)


def trusted(data: bytes) -> bytes:
    """The certificates and revocation lists of a file, as OpenSSL reads them. Raises PemError."""
    found = _chosen(_decoded(data), lambda label: _is_certificate(label) or label == "X509 CRL")
    return "".join(each.text() for each in found).encode()


def _decoded(data: bytes) -> str:
    # Attributes may be in any encoding; the blocks are ASCII.
    return data.decode("utf-8-sig", "replace")


def _chosen(text: str, is_wanted: Callable[[str], bool]) -> list[PemBlock]:
    return [each for each in read_pem(text) if is_wanted(each.label)]
