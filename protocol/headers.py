"""Request and response headers, and whole requests and responses with their headers.

Request header 0 has no client id (ControlledShutdown version 0 only), 1 has one, 2 adds tagged
fields; the client id keeps its two-byte length in all of them. Response header 1 adds tagged fields
to 0; the response to ApiVersions has header 0 in every version. A frame here is what follows the
four bytes of its size; `ottla.protocol.framing` removes those.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, TypeVar

from ottla.protocol.codec import (
    Decode,
    Encode,
    decoder,
    join_in_steps,
    join_parts,
    raw_encoder,
    sliced_decoder,
    sliced_encoder,
)
from ottla.protocol.errors import ProtocolError, UnsupportedVersionError
from ottla.protocol.message import Message, Sliceable
from ottla.protocol.primitives import (
    Buffer,
    Malformed,
    bad_length,
    encode_tagged_fields,
    read_tagged_fields,
)
from ottla.protocol.registry import API, Api, ApiKey

_FIXED = Struct(">hhi")
_FIXED_WITH_CLIENT_ID = Struct(">hhih")
_KIND_AND_CLIENT_ID = Struct(">Iih")  # API key and version in one number
_SIZE = Struct(">i")
_SIZE_AND_CORRELATION_ID = Struct(">ii")
# A copy of more costs more than a part of its own.
_LARGE_BYTES = 64 << 10
_CORRELATION_ID = Struct(">i")

_REQUEST_HEADER = "request header"
_RESPONSE_HEADER = "response header"

M = TypeVar("M", bound=Message)

# Encodes a whole response, or returns None for one that it does not know.
_Whole = Callable[[int, int, Any], bytes | None]

# By API key and version in one number: what has been decoded or encoded before, with all that is
# needed the next time. There are as many as versions of APIs.
_DECODERS: dict[int, tuple[int, int, bool, Decode[Any]]] = {}
_ENCODERS: dict[int, tuple[type[Message], bool, Encode[Any], _Whole | None]] = {}


class RequestHeader:
    """What stands before every request. `client_id` is None where the client sent null or, in
    header 0, could not send one."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "correlation_id",
        "unknown_tagged_fields",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None = None,
        unknown_tagged_fields: dict[int, bytes] | None = None,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.unknown_tagged_fields = unknown_tagged_fields

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestHeader):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """(header, position of the request body).

    Raises UnsupportedVersionError for an API key we do not know and ProtocolError for bytes that
    are no header. The version is not checked against what we have: ApiVersions requests of any
    version get a response.
    """
    size = len(frame)
    if size < _FIXED_WITH_CLIENT_ID.size:
        return _decode_short_header(frame)
    key, version, correlation_id, length = _FIXED_WITH_CLIENT_ID.unpack_from(frame, 0)
    api = API.get(key)
    if api is None:
        raise _unknown_key(key, version)
    header_version = api.request_header_version(version)
    if header_version == 0:
        return RequestHeader(key, version, correlation_id), _FIXED.size
    position = _FIXED_WITH_CLIENT_ID.size
    client_id = unknown = None
    try:
        if length != -1:
            stop = position + length
            if length < 0 or stop > size:
                raise bad_length(length, size - position)
            client_id = str(frame[position:stop], "utf-8")
            position = stop
        if header_version == 2:
            count = frame[position]
            position += 1
            if count:
                unknown, position = read_tagged_fields(frame, position, count, size)
    except (Malformed, IndexError, UnicodeDecodeError) as error:
        raise _bad_request_header(error, api, version) from None
    return RequestHeader(key, version, correlation_id, client_id, unknown), position


def _decode_short_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """A frame in which no header but the one without a client id has room."""
    if len(frame) < _FIXED.size:
        raise ProtocolError(f"{len(frame)} bytes are no request header", api=_REQUEST_HEADER)
    key, version, correlation_id = _FIXED.unpack_from(frame, 0)
    api = API.get(key)
    if api is None:
        raise _unknown_key(key, version)
    if api.request_header_version(version) != 0:
        raise _bad_request_header(IndexError(), api, version)
    return RequestHeader(key, version, correlation_id), _FIXED.size


def _unknown_key(key: int, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"no API has the key {key} (version {version} requested)",
        api=_REQUEST_HEADER,
        field="request_api_key",
    )


def _bad_request_header(error: Exception, api: Api, version: int) -> ProtocolError:
    if isinstance(error, IndexError):
        reason = "ends too early"
    elif isinstance(error, UnicodeDecodeError):
        reason = f"the client id is not UTF-8: {error.reason}"
    else:
        reason = str(error)
    return ProtocolError(
        f"{reason} ({api.name} version {version})",
        api=_REQUEST_HEADER,
        version=api.request_header_version(version),
    )


def decode_request_body(header: RequestHeader, frame: Buffer, position: int) -> Message:
    """The request behind its header; raises UnsupportedVersionError for a version that we do not
    have and ProtocolError for bytes that are no request.

    Bytes after its end are skipped, as Kafka does: librdkafka writes three too many when it
    requests the metadata of all topics in a flexible version.
    """
    cls = API[header.api_key].request
    return decoder(cls, header.api_version)(frame, position)[0]


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """Header and body of a request frame."""
    size = len(frame)
    if size >= _KIND_AND_CLIENT_ID.size:
        kind, correlation_id, length = _KIND_AND_CLIENT_ID.unpack_from(frame, 0)
        known = _DECODERS.get(kind)
        stop = _KIND_AND_CLIENT_ID.size + length
        if known is not None and length >= 0 and stop < size:
            key, version, is_flexible, decode = known
            if not (is_flexible and frame[stop]):  # no tagged fields
                try:
                    client_id = str(frame[_KIND_AND_CLIENT_ID.size : stop], "utf-8")
                except UnicodeDecodeError:
                    pass  # the error is raised below
                else:
                    header = RequestHeader(key, version, correlation_id, client_id)
                    return header, decode(frame, stop + is_flexible)[0]
    header, position = decode_request_header(frame)
    key, version = header.api_key, header.api_version
    header_version = API[key].request_header_version(version)
    message = decode_request_body(header, frame, position)
    if header_version:
        decode = decoder(API[key].request, version)
        _DECODERS[key << 16 | version] = (key, version, header_version == 2, decode)
    return header, message


def decode_request_in_steps(
    header: RequestHeader, frame: Buffer, position: int
) -> Generator[int, None, Message]:
    """`decode_request_body` as a generator; see `ottla.protocol.codec.sliced_decoder`."""
    cls = API[header.api_key].request
    message, _ = yield from sliced_decoder(cls, header.api_version)(frame, position)
    return message


def encode_request_header(
    api_key: int,
    api_version: int,
    correlation_id: int,
    client_id: str | None,
    unknown_tagged_fields: dict[int, bytes] | None = None,
) -> bytes:
    """The header that goes with the version, without a size in front."""
    header_version = API[api_key].request_header_version(api_version)
    try:
        head = _FIXED.pack(api_key, api_version, correlation_id)
        if header_version == 0:
            return head
        if client_id is None:
            head += b"\xff\xff"
        else:
            encoded = client_id.encode()
            head += len(encoded).to_bytes(2, "big", signed=True) + encoded
        if header_version == 1:
            return head
        return head + encode_tagged_fields({}, unknown_tagged_fields)
    except (Malformed, ValueError, OverflowError, AttributeError, struct.error) as error:
        raise ProtocolError(
            f"cannot be encoded: {error}", api=_REQUEST_HEADER, version=header_version
        ) from error


def encode_request(
    correlation_id: int, client_id: str | None, message: Message, version: int
) -> bytes:
    """A whole request with its size in front, ready to be sent. Records must be bytes-like."""
    pieces: list[Any] = [
        b"",
        encode_request_header(message.API_KEY, version, correlation_id, client_id),
    ]
    cuts: list[int] = []
    raw_encoder(type(message), version)(message, pieces, cuts)
    if cuts:
        kind = type(pieces[cuts[0]]).__name__
        raise ProtocolError(f"records are a {kind}", api=message.NAME, version=version)
    pieces[0] = _SIZE.pack(sum(map(len, pieces)))
    return b"".join(pieces)


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The response header that goes with `version` of the API, without a size in front."""
    head = _CORRELATION_ID.pack(correlation_id)
    return head + b"\x00" if API[api_key].response_header_version(version) else head


def _with_large_views(pieces: list[Any], cuts: list[int]) -> list[int]:
    """The cuts, and the records that are a view of what is kept in memory: they are not copied."""
    if memoryview not in map(type, pieces):
        return cuts
    views = (
        index
        for index, piece in enumerate(pieces)
        if type(piece) is memoryview and len(piece) > _LARGE_BYTES
    )
    return sorted([*cuts, *views])


def encode_response(
    api_key: int, version: int, correlation_id: int, message: Message
) -> list[bytes | Sliceable]:
    """A whole response. The first part begins with the size of all parts together; parts that are
    not bytes are records that were given as something else, such as a part of a file, or as a large
    view of memory."""
    known = _ENCODERS.get(api_key << 16 | version)
    if known is None or known[0] is not type(message):
        known = _find_encoder(api_key, version, type(message))
    _, tagged, encode, whole = known
    if whole is not None:
        response = whole(version, correlation_id, message)
        if response is not None:
            return [response]
    pieces: list[Any] = [b""]
    cuts: list[int] = []
    encode(message, pieces, cuts)
    size = sum(map(len, pieces)) + (5 if tagged else 4)
    head = _SIZE_AND_CORRELATION_ID.pack(size, correlation_id)
    pieces[0] = head + b"\x00" if tagged else head
    if size > _LARGE_BYTES:
        cuts = _with_large_views(pieces, cuts)
    if not cuts:
        return [b"".join(pieces)]
    return join_parts(pieces, cuts)


def _find_encoder(
    api_key: int, version: int, cls: type[Message]
) -> tuple[type[Message], bool, Encode[Any], _Whole | None]:
    tagged = API[api_key].response_header_version(version) == 1
    whole: _Whole | None = None
    if api_key == ApiKey.PRODUCE:
        # On demand, as are all classes of messages.
        from ottla.protocol.produce_response import encode_produce_response as whole
    found = (cls, tagged, raw_encoder(cls, version), whole)
    _ENCODERS[api_key << 16 | version] = found
    return found


def encode_response_in_steps(
    api_key: int, version: int, correlation_id: int, message: Message
) -> Generator[None, None, list[bytes | Sliceable]]:
    """`encode_response` as a generator, which yields after each element of an array."""
    pieces: list[Any] = []
    cuts: list[int] = []
    steps = sliced_encoder(type(message), version)(message, pieces, cuts)
    parts = yield from join_in_steps(steps, pieces, cuts, _join_with_large_views)
    tagged = API[api_key].response_header_version(version)
    size = sum(map(len, parts)) + (5 if tagged else 4)
    head = _SIZE_AND_CORRELATION_ID.pack(size, correlation_id)
    return [head + b"\x00" if tagged else head, *parts]


def _join_with_large_views(pieces: list[Any], cuts: list[int]) -> list[bytes | Sliceable]:
    return join_parts(pieces, _with_large_views(pieces, cuts))


def decode_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """(correlation id, position of the response body). Tagged fields are skipped."""
    return _decode_response_header(frame, API[api_key], version)


def _decode_response_header(frame: Buffer, api: Api, version: int) -> tuple[int, int]:
    header_version = api.response_header_version(version)
    size = len(frame)
    try:
        if size < 4:
            raise IndexError
        correlation_id: int = _CORRELATION_ID.unpack_from(frame, 0)[0]
        position = 4
        if header_version == 1:
            count = frame[4]
            position = 5
            if count:
                _, position = read_tagged_fields(frame, 5, count, size)
    except (Malformed, IndexError) as error:
        reason = "ends too early" if isinstance(error, IndexError) else str(error)
        raise ProtocolError(
            f"{reason} ({api.name} version {version})",
            api=_RESPONSE_HEADER,
            version=header_version,
        ) from None
    return correlation_id, position


def decode_response(frame: Buffer, api_key: int, version: int) -> tuple[int, Message]:
    """(correlation id, response) to a request of `version`.

    A broker that does not have the version of an ApiVersions request responds in version 0 with the
    code UNSUPPORTED_VERSION, which is looked for here.
    """
    api = API[api_key]
    correlation_id, position = _decode_response_header(frame, api, version)
    if api_key == ApiKey.API_VERSIONS and version > 0 and _says_unsupported(frame, position):
        version = 0
    message, stop = decoder(api.response, version)(frame, position)
    if stop != len(frame):
        raise _trailing_bytes(len(frame) - stop, api.response.NAME, version)
    return correlation_id, message


def decode_response_in_steps(
    frame: Buffer, api_key: int, version: int
) -> tuple[int, Generator[int, None, Message]]:
    """`decode_response`, but for ApiVersions; see `ottla.protocol.codec.sliced_decoder`."""
    api = API[api_key]
    correlation_id, position = _decode_response_header(frame, api, version)
    return correlation_id, _decode_response_body(frame, api.response, version, position)


def _decode_response_body(
    frame: Buffer, cls: type[Message], version: int, position: int
) -> Generator[int, None, Message]:
    message, stop = yield from sliced_decoder(cls, version)(frame, position)
    if stop != len(frame):
        raise _trailing_bytes(len(frame) - stop, cls.NAME, version)
    return message


def _says_unsupported(frame: Buffer, position: int) -> bool:
    return bytes(frame[position : position + 2]) == b"\x00\x23"


def _trailing_bytes(count: int, name: str, version: int) -> ProtocolError:
    return ProtocolError(f"{count} bytes follow the end of the message", api=name, version=version)
