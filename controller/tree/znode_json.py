"""JSON of znodes: all decoding errors are `MalformedZnode` with the path."""

import json
from collections.abc import Mapping


class MalformedZnode(Exception):
    """The data of a znode has an unknown format; the message has the path."""


def encode_json(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def decode_json(path: str, data: bytes, *, is_secret: bool = False) -> dict[str, object]:
    """The JSON object of a znode. Raises MalformedZnode.

    `is_secret`: the data are not quoted in the error, which would take credentials and passwords
    to the log, the health page and clients.
    """
    quoted = "" if is_secret else f": {data[:200]!r}"
    try:
        payload = json.loads(data)
        if not data.isascii() or b"\\u" in data:
            encode_json(payload)  # half of a surrogate pair, which no response could carry
    except (ValueError, RecursionError) as error:
        raise MalformedZnode(f"{path} does not hold JSON{quoted} ({error})") from None
    if not isinstance(payload, dict):
        raise MalformedZnode(f"{path} does not hold a JSON object{quoted}")
    return payload


def integer(path: str, payload: Mapping[str, object], key: str) -> int:
    value = payload.get(key)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise MalformedZnode(f"{path} holds no whole number under {key!r}: {value!r}")


def whole_number(path: str, payload: Mapping[str, object], key: str, least: int, most: int) -> int:
    value = integer(path, payload, key)
    if least <= value <= most:
        return value
    raise MalformedZnode(f"{path} holds {value} under {key!r}, which is from {least} to {most}")


def integer32(path: str, payload: Mapping[str, object], key: str) -> int:
    """A number that is sent to brokers: one with more bits could not be encoded."""
    value = integer(path, payload, key)
    if fits_32_bits(value):
        return value
    raise MalformedZnode(f"{path} holds a number above 32 bits under {key!r}: {value!r}")


def fits_32_bits(value: int) -> bool:
    return -(2**31) <= value < 2**31


def integers(path: str, value: object) -> tuple[int, ...]:
    """A list of broker ids."""
    if isinstance(value, list) and all(type(item) is int and fits_32_bits(item) for item in value):
        return tuple(value)
    raise MalformedZnode(f"{path} holds {value!r} where a list of whole numbers belongs")


def json_object(path: str, value: object) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise MalformedZnode(f"{path} holds {value!r} where an object belongs")
