"""Whether a renewed certificate is worse than the one in use.

Kafka checks keys of the listener of brokers only (`SslFactory`), and takes whatever else is in a
store: clients are refused from then on, although the broker had a good certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from ottla.broker.config.der import children, value_of
from ottla.broker.config.errors import ConfigError
from ottla.broker.security.tls.certificate_dates import CertificateDates

_VERSION = 0xA0


class Link(NamedTuple):
    """A certificate of a chain; the names are in DER."""

    issuer: bytes
    subject: bytes
    dates: CertificateDates

    @classmethod
    def of(cls, certificate: bytes) -> Link:
        """Raises ValueError."""
        fields = children(value_of(children(value_of(certificate))[0]))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        return cls(fields[2], fields[4], CertificateDates.of(certificate))

    @property
    def is_self_signed(self) -> bool:
        return self.issuer == self.subject


class CertificateChain(NamedTuple):
    """The certificate of a key, and those of its issuers that clients get with it."""

    leaf: Link
    others: tuple[Link, ...]

    def has_issuer(self) -> bool:
        return any(each.subject == self.leaf.issuer for each in self.others)

    def problem(self, now: float) -> str:
        """Why clients reject it at this time; empty when they do not. A root is theirs."""
        for link in (self.leaf, *(each for each in self.others if not each.is_self_signed)):
            which = "it" if link is self.leaf else "the certificate of its issuer"
            if now < link.dates.not_before:
                return f"{which} is not valid before {day_of(link.dates.not_before)}"
            if now > link.dates.not_after:
                return f"{which} expired on {day_of(link.dates.not_after)}"
        return ""

    def valid_from(self) -> float:
        return max(each.dates.not_before for each in (self.leaf, *self.others))


def check_renewal(
    old: CertificateChain | None,
    new: CertificateChain | None,
    trusted: Iterable[bytes],
    now: float,
) -> None:
    """ConfigError with the dates of both when `new` is worse than `old`, which is good.

    `trusted` are certificates in DER that the truststore has: the issuer of a certificate may be
    missing in its chain if it is a root.
    """
    if old is None or new is None or old.problem(now):
        return
    problem = new.problem(now)
    if not problem and old.has_issuer() and not new.has_issuer():
        roots = {each.issuer for each in old.others}
        roots |= {each.subject for each in map(Link.of, trusted) if each.is_self_signed}
        if new.leaf.issuer not in roots and not new.leaf.is_self_signed:
            problem = (
                "it comes without the certificate of its issuer, which clients need: append the "
                "chain to the key store"
            )
    if problem:
        raise ConfigError(
            f"The new certificate (valid {_range(new)}) does not replace the one in use (valid "
            f"{_range(old)}): {problem}."
        )


def _range(chain: CertificateChain) -> str:
    dates = chain.leaf.dates
    return f"from {day_of(dates.not_before)} to {day_of(dates.not_after)}"


def day_of(seconds: float) -> str:
    """A time of a certificate, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
