"""The dates of a certificate, as the library `cryptography` reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.broker.config.key_stores import certificates_of
from ottla.broker.security.tls.certificate_dates import CertificateDates
from tests.doubles.certificates import Certificates


def test_dates_of_this_century(tmp_path: Path) -> None:
    pem = Certificates(tmp_path).server_path.read_bytes()
    certificate = certificates_of(pem)[0]
    assert certificate is not None
    dates = CertificateDates.of(certificate)
    expected = x509.load_der_x509_certificate(certificate)
    assert dates.not_before == expected.not_valid_before_utc.timestamp()
    assert dates.not_after == expected.not_valid_after_utc.timestamp()
    assert not dates.has_expired(dates.not_after)
    assert dates.has_expired(dates.not_after + 1)


@pytest.mark.parametrize("years", [(1960, 2049), (2050, 2100), (1999, 9999)])
def test_both_encodings_of_time(years: tuple[int, int]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    first, last = (datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC) for year in years)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, first, last)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    assert CertificateDates.of(certificate)[:2] == (first.timestamp(), last.timestamp())


def test_what_is_no_certificate() -> None:
    with pytest.raises((ValueError, IndexError)):
        CertificateDates.of(b"\x30\x03\x02\x01\x01")
