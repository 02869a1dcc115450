"""Which of several keys in a store a listener presents: that of the JDK's key manager.

The JDK makes the stores of the vectors, JKS and PKCS12, the latter also with triple DES and 40 bits
of RC2. Where a JDK is there, other stores are made, too.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from ottla.broker.config.key_stores import certificates_of, read_keys
from ottla.broker.security.tls.contexts import listener_context
from tests.doubles.apache_kafka import kafka_library
from tests.golden.identity.regenerate import HERE, Question, ask
from tests.unit.broker.security.tls.test_contexts import config

VECTORS = HERE / "key_stores.jsonl.gz"
FORMS = (("JKS", False), ("PKCS12", False), ("PKCS12", True))
NAMES = (
    "broker",
    "Server",
    "caroot",
    "kafka 1",
    "\u00fcber",
    "a",
    "b",
    "q",
    "AaAa",
    "BBBB",
    "AaBB",
    "\U0001f511",
)

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def _entry(alias: str, key: Private) -> list[str]:
    """An alias, its key and a certificate whose common name is the alias."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, alias)])
    first, last = datetime(2020, 1, 1), datetime(2049, 1, 1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, first, last)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    certificate = builder.sign(key, digest)
    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return [alias, private.hex(), certificate.public_bytes(serialization.Encoding.DER).hex()]


def questions(source: random.Random, count: int) -> list[Question]:
    """Stores with up to eight keys; the last ones have enough for a larger hash map."""
    keys: list[Private] = [rsa.generate_private_key(65537, 2048)]
    keys += [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()]
    found = []
    for number in range(count):
        size = source.randint(1, 8) if number < count - 3 else 15
        aliases = source.sample([*NAMES, *(f"key-{each}" for each in range(30))], size)
        kind, legacy = FORMS[number % len(FORMS)]
        most = keys[1:2] if size > 8 else source.choices(keys, weights=(2, 3, 1), k=size)
        entries = [_entry(alias, most[each % len(most)]) for each, alias in enumerate(aliases)]
        found.append({"store": kind, "legacy": legacy, "keys": entries})
    return found


def write_vectors() -> None:
    """Called by `regenerate.py`."""
    asked = questions(random.Random(1), 24)
    _, answers = ask(kafka_library(), asked)
    with gzip.GzipFile(VECTORS, "wb", mtime=0) as file:
        for question, answer in zip(asked, answers, strict=True):
            file.write((json.dumps([question, answer]) + "\n").encode())


def check(path: Path, asked: list[Question], answers: list[dict[str, str]]) -> None:
    for question, answer in zip(asked, answers, strict=True):
        assert "found" in answer, (question, answer)
        store, *chosen = answer["found"].split("|")
        path.write_bytes(bytes.fromhex(store))
        assert _first_of_each_kind(path, question["store"]) == chosen, question
        _loads(path, question["store"], {alias for alias in chosen if alias})


def _first_of_each_kind(path: Path, kind: str) -> list[str]:
    """The alias, as Java keeps it, of the first RSA, EC and EdDSA key."""
    found = {"rsa": "", "ec": "", "ed25519": ""}
    for keys in read_keys("ssl.keystore", str(path), kind, "storepass", None):
        leaf = x509.load_der_x509_certificate(certificates_of(keys.pem)[0])
        name = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        public = leaf.public_key()
        which = "ec" if isinstance(public, ec.EllipticCurvePublicKey) else "ed25519"
        which = "rsa" if isinstance(public, rsa.RSAPublicKey) else which
        found[which] = found[which] or str(name).lower()
    return list(found.values())


def _loads(path: Path, kind: str, names: set[str]) -> None:
    made = listener_context(
        config(
            ssl_keystore_location=path, ssl_keystore_type=kind, ssl_keystore_password="storepass"
        ),
        "SSL",
    )
    assert {each.identity.subject[0][1] for each in made.certificates} == names


def test_vectors(tmp_path: Path) -> None:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    check(tmp_path / "store", [each[0] for each in pairs], [each[1] for each in pairs])


def test_other_stores(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("a JDK makes the stores to compare with: there is no `javac` on the PATH")
    seed = random.randrange(1 << 32) if os.environ.get("OTTLA_EXPLORE") else 2
    asked = questions(random.Random(seed), 24)
    _, answers = ask(kafka_library(), asked)
    check(tmp_path / "store", asked, answers)
