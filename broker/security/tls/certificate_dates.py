"""When a certificate is valid (RFC 5280, 4.1.2.5)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from ottla.broker.config.der import children, value_of

_VERSION = 0xA0
_UTC_TIME = 0x17


class CertificateDates(NamedTuple):
    """In seconds since 1970. The texts are empty where all is well: `rejected` is why a newer
    certificate is not used, `unusable` why no client can connect with this one, and `incomplete`
    why some cannot."""

    not_before: float
    not_after: float
    rejected: str = ""
    unusable: str = ""
    incomplete: str = ""

    @classmethod
    def of(cls, certificate: bytes) -> CertificateDates:
        """The dates in a certificate in DER. Raises ValueError."""
        fields = children(value_of(children(value_of(certificate))[0]))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        validity = fields[3]  # after serial number, algorithm and issuer
        first, last = children(value_of(validity))
        return cls(_seconds(first), _seconds(last))

    def text(self) -> str:
        """Both dates, in UTC."""
        return f"from {day_of(self.not_before)} to {day_of(self.not_after)}"

    def is_early(self, now: float) -> bool:
        return now < self.not_before

    def has_expired(self, now: float) -> bool:
        return now > self.not_after


def day_of(seconds: float) -> str:
    """A time of a certificate, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(time: bytes) -> float:
    text = value_of(time).decode("ascii")
    if time[0] == _UTC_TIME:
        # Two digits of the year: 50 and above are of the last century.
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
