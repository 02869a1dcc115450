"""A certificate authority for the life of a process, and a certificate of 127.0.0.1 that it signed.

All embedded brokers of the process share them: a key takes longer than the start of a broker.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

_making = threading.Lock()

# Long enough for a process that tests, and no longer: nobody should keep these files.
_DAYS = 30


class CertificateFiles(NamedTuple):
    """`server` has the key and the certificate of a broker, `client` those of a client, whose name
    is CN=client, and `authority` what both trust."""

    authority: Path
    server: Path
    client: Path


def certificate_files() -> CertificateFiles:
    """The files of this process, in a temporary directory that its end removes. Raises RuntimeError
    without the package that makes certificates."""
    with _making:  # the brokers of a cluster start in parallel, and trust one authority
        return _made_files()


@cache
def _made_files() -> CertificateFiles:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise RuntimeError(
            "tls=True makes certificates with the package cryptography: "
            "pip install cryptography, or Ottla with the extra keystores"
        ) from None
    now = datetime.now(UTC)

    def certificate(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ottla.testing")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=_DAYS))
        )

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        certificate("ottla.testing", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names += [x509.IPAddress(ip_address(each)) for each in ("127.0.0.1", "::1")]
    folder = Path(tempfile.mkdtemp(prefix="ottla-certificates-"))
    atexit.register(_remove, folder, os.getpid())
    files = CertificateFiles(folder / "authority.pem", folder / "server.pem", folder / "client.pem")
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for path, name in ((files.server, "localhost"), (files.client, "client")):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            certificate(name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.touch(mode=0o600)
        path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return files


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends before its parent
        shutil.rmtree(folder, ignore_errors=True)
