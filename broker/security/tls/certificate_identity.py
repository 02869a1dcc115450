"""Whether a renewed certificate stands for the same broker (`ssl.allow.dn.changes`, KIP-978).

Mirrors `SslFactory.CertificateEntries`: the subject must be the same, and the new certificate must
have every alternative name of the old one.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.config.der import children, value_of
from ottla.broker.config.errors import ConfigError

_ALTERNATIVE_NAMES = bytes.fromhex("0603551d11")  # 2.5.29.17 in DER
_EXTENSIONS, _VERSION = 0xA3, 0xA0


class CertificateIdentity(NamedTuple):
    """`subject` are the attributes as (type, value); `names` the alternative names in DER."""

    subject: tuple[tuple[bytes, str], ...]
    names: frozenset[bytes]

    @classmethod
    def of(cls, certificate: bytes) -> CertificateIdentity:
        """The identity in a certificate in DER. Raises ValueError."""
        fields = children(value_of(children(value_of(certificate))[0]))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        subject = fields[4]  # after serial number, algorithm, issuer and validity
        names: frozenset[bytes] = frozenset()
        for field in fields:
            if field[0] == _EXTENSIONS:
                names = _alternative_names(value_of(value_of(field)))
        return cls(tuple(_attributes(subject)), names)


def check_same_identity(
    old: CertificateIdentity,
    new: CertificateIdentity,
    *,
    allow_dn_changes: bool,
    allow_san_changes: bool,
) -> None:
    """ConfigError when the certificate of a listener may not be replaced by a new one."""
    if not allow_dn_changes and old.subject != new.subject:
        raise ConfigError(
            "The subject of the new certificate is another one "
            f"({_shown(new)}, before: {_shown(old)}); set ssl.allow.dn.changes=true if that is "
            "intended."
        )
    if not allow_san_changes and not old.names <= new.names:
        raise ConfigError(
            "The new certificate lacks subject alternative names of the old one; set "
            "ssl.allow.san.changes=true if that is intended."
        )


def _attributes(subject: bytes) -> list[tuple[bytes, str]]:
    found: list[tuple[bytes, str]] = []
    for several in children(value_of(subject)):
        for attribute in children(value_of(several)):
            kind, value = children(value_of(attribute))
            # Capitals and repeated blanks do not count (RFC 5280, 7.1).
            text = " ".join(value_of(value).decode("utf-8", "replace").lower().split())
            found.append((kind, text))
    return found


def _alternative_names(extensions: bytes) -> frozenset[bytes]:
    for extension in children(extensions):
        parts = children(value_of(extension))
        if parts[0] == _ALTERNATIVE_NAMES:
            # The last part is an octet string; a flag "critical" may stand before it.
            return frozenset(children(value_of(value_of(parts[-1]))))
    return frozenset()


def _shown(identity: CertificateIdentity) -> str:
    return ",".join(text for _, text in identity.subject) or "no name"
