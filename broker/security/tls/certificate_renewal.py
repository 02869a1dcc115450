"""Whether a renewed certificate is worse than the one in use.

Kafka checks keys of the listener of brokers only (`SslFactory`), and takes whatever else is in a
store: clients are refused from then on, although the broker had a good certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.config.der import children, value_of
from ottla.broker.config.errors import ConfigError
from ottla.broker.security.tls.certificate_dates import CertificateDates, day_of

_VERSION = 0xA0


class Link(NamedTuple):
    """A certificate of a chain; the names and the algorithm of its key are in DER."""

    issuer: bytes
    subject: bytes
    dates: CertificateDates
    key_kind: bytes

    @classmethod
    def of(cls, certificate: bytes) -> Link:
        """Raises ValueError."""
        fields = children(value_of(children(value_of(certificate))[0]))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        algorithm = children(value_of(children(value_of(fields[5]))[0]))[0]
        return cls(fields[2], fields[4], CertificateDates.of(certificate), algorithm)

    @property
    def is_self_signed(self) -> bool:
        return self.issuer == self.subject


class CertificateChain(NamedTuple):
    """The certificate of a key, and those of its issuers that clients get with it."""

    leaf: Link
    others: tuple[Link, ...]

    def has_issuer(self) -> bool:
        return any(each.subject == self.leaf.issuer for each in self.others)

    def lacks_issuer(self, roots: Iterable[bytes]) -> bool:
        """Whether clients that trust these names only cannot verify it."""
        leaf = self.leaf
        return not (self.has_issuer() or leaf.is_self_signed or leaf.issuer in roots)

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
    old: CertificateChain,
    new: CertificateChain,
    trusted: Iterable[bytes],
    now: float,
) -> None:
    """ConfigError with the dates of both when `new` is worse than `old`, which is good.

    `trusted` are certificates in DER that the truststore has: the issuer of a certificate may be
    missing in its chain if it is a root.
    """
    if old.problem(now):
        return
    problem = new.problem(now)
    roots = {each.issuer for each in old.others} | roots_of(trusted)
    if not problem and old.has_issuer() and new.lacks_issuer(roots):
        problem = (
            "it comes without the certificate of its issuer, which clients need: append the chain "
            "to the key store"
        )
    if problem:
        raise ConfigError(
            f"The new certificate (valid {_range(new)}) does not replace the one in use (valid "
            f"{_range(old)}): {problem}."
        )


def roots_of(trusted: Iterable[bytes]) -> set[bytes]:
    """The names of the self-signed ones of these certificates in DER."""
    return {each.subject for each in map(Link.of, trusted) if each.is_self_signed}


def _range(chain: CertificateChain) -> str:
    return chain.leaf.dates.text()
