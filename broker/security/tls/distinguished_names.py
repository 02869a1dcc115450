"""The name of a certificate's subject as Java writes it (`X500Principal.getName()`, RFC 2253).

Kafka's ACLs, quotas, `super.users` and `ssl.principal.mapping.rules` hold that text, so each
character counts, the oddities too. They are those of Java 17: the bytes of every string type are
read as UTF-8, even those of a BMPString (which gets a `\\00` before each ASCII letter). Java 25
decodes BMPString and T61String by their type.
"""

from __future__ import annotations

from ottla.broker.config.der import children, encoded, value_of

_VERSION = 0xA0
_OBJECT_ID, _SEQUENCE, _SET = 0x06, 0x30, 0x31

# The attributes with a short name in RFC 2253, by the content of their object identifier. All
# others are written as a number, with the DER of the value in hexadecimal.
_SHORT_NAMES = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}

# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString. A value of another
# type is written as its DER, whatever its attribute.
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_LONG_TAG = 0x1F

_ESCAPED = str.maketrans({**{each: f"\\{each}" for each in ',=+<>#;"\\'}, "\0": "\\00"})
# What Java takes for white space at the ends of a value.
_BLANKS = " \r"

_REPLACEMENT = "\ufffd"


def subject_of(certificate: bytes) -> bytes:
    """The subject of a certificate, both in DER. Raises ValueError."""
    parts = children(value_of(certificate))
    fields = children(value_of(parts[0])) if parts else []
    if fields and fields[0][0] == _VERSION:
        fields = fields[1:]
    if len(fields) < 5:
        raise ValueError("the certificate has no subject")
    return fields[4]  # after serial number, algorithm, issuer and validity


def distinguished_name(subject: bytes) -> str:
    """The text of a subject in DER. Raises ValueError where Java rejects the certificate."""
    relative = [_relative_name(each) for each in children(_content(subject, _SEQUENCE))]
    return ",".join(reversed(relative))


def _content(element: bytes, tag: int) -> bytes:
    if element[0] != tag:
        raise ValueError(f"the subject has an element of type {element[0]:#x}, not {tag:#x}")
    return value_of(element)


def _relative_name(element: bytes) -> str:
    return "+".join(_attribute(each) for each in children(_content(element, _SET)))


def _attribute(element: bytes) -> str:
    parts = children(_content(element, _SEQUENCE))
    if len(parts) != 2:
        raise ValueError("an attribute of the subject is not a type with a value")
    identifier, value = _content(parts[0], _OBJECT_ID), parts[1]
    tag, content = value[0], value_of(value)
    if tag & _LONG_TAG == _LONG_TAG:
        raise ValueError("a value in the subject has a type of several bytes")
    short = _SHORT_NAMES.get(identifier)
    if short is None or tag not in _TEXTS:
        # The length is encoded anew: the shortest form, whatever the certificate has.
        return f"{short or _dotted(identifier)}=#{encoded(tag, content).hex()}"
    return f"{short}={_escaped(utf8_as_java(content))}"


def _dotted(content: bytes) -> str:
    """The numbers of an object identifier."""
    if not content or content[-1] & 0x80:
        raise ValueError("an object identifier in the subject is cut off")
    numbers: list[int] = []
    number, is_first = 0, True
    for byte in content:
        if is_first and byte == 0x80:
            raise ValueError("an object identifier in the subject has a superfluous byte")
        number = number << 7 | byte & 0x7F
        is_first = not byte & 0x80
        if is_first:
            numbers.append(number)
            number = 0
    root = min(numbers[0] // 40, 2)
    return ".".join(map(str, (root, numbers[0] - root * 40, *numbers[1:])))


def _escaped(text: str) -> str:
    escaped = text.translate(_ESCAPED)
    inner = escaped.lstrip(_BLANKS)
    leading = escaped[: len(escaped) - len(inner)]
    core = inner.rstrip(_BLANKS)
    trailing = inner[len(core) :]
    if not (leading or trailing):
        return escaped
    return (
        "".join(f"\\{each}" for each in leading) + core + "".join(f"\\{each}" for each in trailing)
    )


def utf8_as_java(data: bytes) -> str:
    """The text that `new String(data, UTF_8)` is: a malformed sequence is one U+FFFD, as in
    `java.lang.String`. Python's decoder writes more of them for surrogates and at the end."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _decode_malformed(data)


def _decode_malformed(data: bytes) -> str:
    out: list[str] = []
    position = 0
    while position < len(data):
        size = _well_formed(data, position)
        if size:
            out.append(data[position : position + size].decode())
            position += size
        else:
            out.append(_REPLACEMENT)
            position += _malformed(data, position)
    return "".join(out)


def _expected(first: int) -> int:
    """The length of a sequence that begins with this byte; 0 if none does."""
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        return 2
    if first >> 4 == 0xE:
        return 3
    return 4 if first >> 3 == 0x1E else 0


def _well_formed(data: bytes, position: int) -> int:
    size = _expected(data[position])
    try:
        data[position : position + size].decode()
    except UnicodeDecodeError:
        return 0
    return size


def _malformed(data: bytes, position: int) -> int:
    """How many bytes one replacement stands for."""
    first, size = data[position], _expected(data[position])
    if size < 2:
        return 1
    following = data[position + 1 : position + size]
    if following and not _may_follow(first, following[0]):
        return 1
    good = 0
    for byte in following:
        if byte & 0xC0 != 0x80:
            break
        good += 1
    if size == 4 and first > 0xF4:
        return 1
    return 1 + good


def _may_follow(first: int, second: int) -> bool:
    if second & 0xC0 != 0x80:
        return False
    if first == 0xE0:
        return second >= 0xA0
    if first == 0xF0:
        return second >= 0x90
    return second < 0x90 if first == 0xF4 else True
