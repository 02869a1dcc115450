"""Certificates in DER with any subject: every attribute, string type and character, and the names
of real authorities. They are not signed; a test that needs a signature makes it over
`tbs_certificate`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

UTF8, PRINTABLE, T61, IA5, GENERAL, UNIVERSAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E
STRING_TYPES = (UTF8, PRINTABLE, T61, IA5, GENERAL, UNIVERSAL, BMP, 0x12, 0x1A)
OTHER_TYPES = (0x02, 0x03, 0x04, 0x17)

EMAIL = "1.2.840.113549.1.9.1"
_SHORT = {
    "CN": "2.5.4.3",
    "C": "2.5.4.6",
    "L": "2.5.4.7",
    "ST": "2.5.4.8",
    "STREET": "2.5.4.9",
    "O": "2.5.4.10",
    "OU": "2.5.4.11",
    "DC": "0.9.2342.19200300.100.1.25",
    "UID": "0.9.2342.19200300.100.1.1",
}
_NAMED = (
    *("2.5.4.4", "2.5.4.5", "2.5.4.12", "2.5.4.13", "2.5.4.15", "2.5.4.17", "2.5.4.20", "2.5.4.41"),
    *("2.5.4.42", "2.5.4.43", "2.5.4.44", "2.5.4.45", "2.5.4.46", "2.5.4.65", "2.5.4.97"),
    *("1.2.840.113549.1.9.1", "1.2.840.113549.1.9.2", "1.2.840.113549.1.9.8"),
    *("1.3.6.1.4.1.311.60.2.1.1", "1.3.6.1.4.1.311.60.2.1.2", "1.3.6.1.4.1.311.60.2.1.3"),
    *("1.3.6.1.4.1.37244.1.1", "1.3.6.1.4.1.37244.2.1", "1.3.6.1.4.1.42.2.11.2.1"),
    *("2.999.1", "2.5.4.3.1", "0.9.2342.19200300.100.1.3", "2.5.4.72", "2.16.840.1.113730.3.1.3"),
)

_PIECES = (
    *("a", "B", "z9", " ", "  ", ",", "+", '"', "\\", "<", ">", ";", "=", "#", "/", "@", "*", "$1"),
    *("\r", "\n", "\t", "\0", "\x01", "\x7f", "\x80", "\x85", "\xa0", "ü", "Ü", "é", "ß", "\u0131"),
    *("\u2028", "\u3000", "\ufeff", "日本", "\U0001f600", "e\u0301", "\u0660", "\u202e", "DEFAULT"),
    *("CN=", ",OU=", "User:", "%2C", "\ufffd"),
)


def element(tag: int, content: bytes) -> bytes:
    """One element in DER."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def object_id(dotted: str) -> bytes:
    numbers = [int(each) for each in dotted.split(".")]
    content = bytearray()
    for number in (numbers[0] * 40 + numbers[1], *numbers[2:]):
        pieces = [number & 0x7F]
        while number := number >> 7:
            pieces.append(number & 0x7F | 0x80)
        content += bytes(reversed(pieces))
    return element(0x06, bytes(content))


def text_value(tag: int, text: str) -> bytes:
    codec = {BMP: "utf-16-be", UNIVERSAL: "utf-32-be", T61: "latin-1"}.get(tag, "utf-8")
    return element(tag, text.encode(codec, "replace"))


Attribute = tuple[str, bytes]
"""The object identifier, and the value in DER."""


def subject(*relative: Iterable[Attribute]) -> bytes:
    """A name whose parts have one or several attributes each."""
    parts = b"".join(
        element(0x31, b"".join(element(0x30, object_id(kind) + value) for kind, value in several))
        for several in relative
    )
    return element(0x30, parts)


def simple(*pairs: tuple[str, str], tag: int = UTF8) -> bytes:
    """A name of attributes such as ("CN", "alice")."""
    return subject(*([(_SHORT.get(kind, kind), text_value(tag, text))] for kind, text in pairs))


def tbs_certificate(subject: bytes, public_key: bytes, algorithm: bytes, issuer: bytes) -> bytes:
    """What an authority signs; valid from 2020 to 2049, with a critical alternative name."""
    alternative = element(0x30, element(0x86, b"spiffe://test/workload"))
    extension = element(
        0x30, object_id("2.5.29.17") + element(0x01, b"\xff") + element(0x04, alternative)
    )
    validity = element(0x30, element(0x17, b"200101000000Z") + element(0x17, b"490101000000Z"))
    return element(
        0x30,
        element(0xA0, element(0x02, b"\x02"))
        + element(0x02, b"\x11")
        + algorithm
        + issuer
        + validity
        + subject
        + public_key
        + element(0xA3, element(0x30, extension)),
    )


_EC_POINT = bytes.fromhex(
    "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c2964fe342e2fe1a7f9b8ee7eb4a7c0f"
    "9e162bce33576b315ececbb6406837bf51f5"
)
_KEY = element(
    0x30,
    element(0x30, object_id("1.2.840.10045.2.1") + object_id("1.2.840.10045.3.1.7"))
    + element(0x03, b"\0" + _EC_POINT),
)
ECDSA_WITH_SHA256 = element(0x30, object_id("1.2.840.10045.4.3.2"))


def certificate(subject: bytes) -> bytes:
    """A certificate that parses, with a signature that verifies nothing."""
    issuer = simple(("CN", "test authority"))
    signed = tbs_certificate(subject, _KEY, ECDSA_WITH_SHA256, issuer)
    return element(0x30, signed + ECDSA_WITH_SHA256 + element(0x03, b"\0" + element(0x30, b"")))


def random_text(source: random.Random) -> str:
    shape = source.random()
    if shape < 0.08:
        return ""
    count = source.randrange(200, 1200) if shape > 0.97 else source.randrange(1, 8)
    return "".join(source.choice(_PIECES) for _ in range(count))


def random_value(source: random.Random) -> bytes:
    shape = source.random()
    if shape < 0.75:
        return text_value(source.choice(STRING_TYPES), random_text(source))
    if shape < 0.9:  # bytes that are no text of their type
        tag = source.choice(STRING_TYPES)
        size = source.randrange(1, 12) * (2 if tag == BMP else 1)
        return element(tag, source.randbytes(size))
    return element(source.choice(OTHER_TYPES), source.randbytes(source.randrange(1, 6)))


def random_attribute(source: random.Random) -> Attribute:
    shape = source.random()
    if shape < 0.65:
        kind = source.choice(list(_SHORT.values()))
    elif shape < 0.9:
        kind = source.choice(_NAMED)
    else:
        numbers = (source.randrange(1 << source.randrange(1, 40)) for _ in range(3))
        kind = f"1.3.{'.'.join(map(str, numbers))}"
    return kind, random_value(source)


def random_subject(source: random.Random) -> bytes:
    relative = []
    for _ in range(source.randrange(6)):
        several = 1 if source.random() < 0.8 else source.randrange(2, 4)
        relative.append([random_attribute(source) for _ in range(several)])
    return subject(*relative)


def real_subjects() -> Sequence[bytes]:
    """The shapes of names that authorities write: EV, eIDAS, devices, meshes, directories."""
    return (
        subject(
            [("2.5.4.15", text_value(PRINTABLE, "Private Organization"))],
            [("1.3.6.1.4.1.311.60.2.1.3", text_value(PRINTABLE, "DE"))],
            [("1.3.6.1.4.1.311.60.2.1.2", text_value(UTF8, "Bayern"))],
            [("2.5.4.5", text_value(PRINTABLE, "HRB 12345"))],
            [("2.5.4.6", text_value(PRINTABLE, "DE"))],
            [("2.5.4.10", text_value(UTF8, "Müller & Söhne, GmbH"))],
            [("2.5.4.3", text_value(UTF8, "kafka.example.com"))],
        ),
        subject(
            [("2.5.4.6", text_value(PRINTABLE, "AT"))],
            [("2.5.4.42", text_value(UTF8, "Jörg")), ("2.5.4.4", text_value(UTF8, "Ünal"))],
            [("2.5.4.97", text_value(UTF8, "VATAT-U12345678"))],
            [("2.5.4.5", text_value(PRINTABLE, "PNOAT-123"))],
            [("2.5.4.3", text_value(UTF8, "Jörg Ünal"))],
        ),
        simple(("CN", "device/0042"), ("2.5.4.5", "SN=0042"), ("OU", " Sensors ")),
        subject([("1.3.6.1.4.1.37244.1.1", text_value(UTF8, "DEDEDEDE00010001"))]),
        subject(),
        simple(("C", "US"), ("O", "SPIRE")),
        simple(("O", "istio.example"), ("OU", "#1"), ("CN", "")),
        simple(("DC", "com"), ("DC", "example"), ("CN", "Users"), ("CN", "Smith, John"), tag=IA5),
        subject(
            [
                ("2.5.4.3", text_value(UTF8, "alice")),
                ("1.2.840.113549.1.9.1", text_value(IA5, "a@b")),
            ]
        ),
        simple(("O", "Пример"), ("CN", "пользователь"), tag=BMP),
        simple(("O", "Société"), ("CN", "café"), tag=T61),
        simple(("CN", "a" * 300), ("O", "x=y#z")),
        subject(
            [("2.5.4.45", element(0x03, b"\x00\x05\xa0"))], [("2.5.4.3", element(0x02, b"\x05"))]
        ),
    )


def damaged_subjects(source: random.Random, count: int) -> list[bytes]:
    """Names with structures that DER does not allow, or that no authority writes."""
    found = [
        subject([("2.5.4.3", element(BMP, b"abc"))]),
        subject([]),
        element(0x30, element(0x30, b"")),
        element(0x31, b""),
        element(0x30, element(0x31, element(0x30, object_id("2.5.4.3")))),
        subject([("2.5.4.3", text_value(UTF8, "a") + text_value(UTF8, "b"))]),
        subject([("2.5.4.3", b"\x0c\x81\x01a")], [("2.5.4.5", b"\x0c\x81\x01a")]),
        subject([("2.5.4.3", b"\x2c\x03\x0c\x01a")], [("2.5.4.5", b"\xa0\x03\x0c\x01a")]),
        subject([("2.5.4.3", b"\x1f\x81\x01\x01a")]),
        subject([("2.5.4.5", b"\x05\x00")]),
    ]
    for content in (b"\x80\x01", b"\x55\x84", b"", b"\x55" + b"\xff" * 40 + b"\x01"):
        kind = element(0x06, content)
        found.append(element(0x30, element(0x31, element(0x30, kind + text_value(UTF8, "a")))))
    while len(found) < count:
        damaged = bytearray(random_subject(source))
        if len(damaged) > 4:
            damaged[source.randrange(2, len(damaged))] = source.randrange(256)
            found.append(bytes(damaged))
    return found


def damaged_texts(source: random.Random, count: int) -> list[bytes]:
    """Bytes that are not, or not all, a text in UTF-8."""
    heads = bytes.fromhex("e0a080edf090f48fc241f5bfc0ef7fe4")
    return [
        bytes(source.choice(heads) for _ in range(source.randrange(1, 8))) for _ in range(count)
    ]
