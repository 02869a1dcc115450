"""Messages to bytes and back: `decoder`, `encoder` and `parts_encoder`.

Each function they return is compiled for one class and one version on first use (some tenths of a
millisecond to a few) and kept. Decoding and encoding raise ProtocolError and nothing else.

Decoding copies strings and bytes out of the buffer; `records` fields become memoryviews of the
caller's buffer, writable if it is. A message without records in its version is decoded from
`bytes`, so pass bytes if they are available: other buffers are copied first.

Encoding follows Kafka where a version cannot carry a value: fields marked ignorable are dropped,
others raise unless they hold their default.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable
from types import CodeType, TracebackType
from typing import Any, TypeVar, cast

from ottla.protocol.decode_compiler import DecodeCompiler
from ottla.protocol.encode_compiler import EncodeCompiler
from ottla.protocol.errors import ProtocolError, UnencodableError, UnsupportedVersionError
from ottla.protocol.layout import Layout
from ottla.protocol.message import Message, Sliceable
from ottla.protocol.primitives import Buffer, Malformed
from ottla.protocol.source_writer import LineFields

#: The fields of one line of compiled source: path, struct code, expression.
Fields = tuple[tuple[str, str, str], ...]

M = TypeVar("M", bound=Message)

Decode = Callable[[Buffer, int], tuple[M, int]]
#: Yields how many elements it is about to read, 0 between them; returns what `Decode` returns.
SlicedDecode = Callable[[Buffer, int], Generator[int, None, tuple[M, int]]]
#: Appends the pieces of a message to the first list and the places of pass-through ones to the
#: second.
Encode = Callable[[M, list[Any], list[int]], None]

#: The same in steps.
SlicedEncode = Callable[[M, list[Any], list[int]], Generator[None, None, None]]

_VERSION = struct.Struct(">h")

#: What decoding bytes can raise: our own complaints, the end of the buffer, bad UTF-8.
_DECODE_ERRORS = (Malformed, struct.error, IndexError, UnicodeDecodeError)

#: What encoding an object can raise: our own complaints, values of the wrong type or out of range,
#: None where null is not allowed, text that is not Unicode.
_ENCODE_ERRORS = (
    Malformed,
    struct.error,
    AttributeError,
    TypeError,
    ValueError,
    OverflowError,
)

_decoders: dict[tuple[type[Message], int], Decode[Any]] = {}
_encoders: dict[tuple[type[Message], int], Encode[Any]] = {}
_sliced_decoders: dict[tuple[type[Message], int], SlicedDecode[Any]] = {}
_sliced_encoders: dict[tuple[type[Message], int], SlicedEncode[Any]] = {}


def decoder(cls: type[M], version: int) -> Decode[M]:
    """The function `decode(buffer, position) -> (message, position after it)`."""
    found = _decoders.get((cls, version))
    if found is None:
        found = _decoders[cls, version] = _compile_decoder(cls, version)
    return found


def raw_encoder(cls: type[M], version: int) -> Encode[M]:
    """The function `encode(message, pieces, cuts)` that the other encoders are made of: it appends
    to `pieces` what is to be sent in order, and to `cuts` the indexes of pieces that are not
    bytes-like."""
    found = _encoders.get((cls, version))
    if found is None:
        own = cls.encode_pieces
        if own is None:
            found = _compile_encoder(cls, version)
        else:
            found = _own_encoder(own, version)
        _encoders[cls, version] = found
    return found


def _own_encoder(encode_pieces: Callable[[M, int, list[Any]], None], version: int) -> Encode[M]:
    def encode(message: M, pieces: list[Any], cuts: list[int]) -> None:
        encode_pieces(message, version, pieces)

    return encode


def sliced_decoder(cls: type[M], version: int) -> SlicedDecode[M]:
    """The decoder as a generator, for messages with very many elements.

    Before the elements of an array, or the tagged fields of a struct, it yields their number; it
    yields 0 after every 64 elements. Nothing is made of elements before their number was yielded.
    """
    found = _sliced_decoders.get((cls, version))
    if found is None:
        compiled = _compile_decoder(cls, version, sliced=True)
        found = _sliced_decoders[cls, version] = cast("SlicedDecode[M]", compiled)
    return found


def sliced_encoder(cls: type[M], version: int) -> SlicedEncode[M]:
    """The function of `raw_encoder` as a generator, which yields after each element."""
    found = _sliced_encoders.get((cls, version))
    if found is None:
        if cls.encode_pieces is not None:
            found = _in_one_step(raw_encoder(cls, version))
        else:
            found = cast("SlicedEncode[M]", _compile_encoder(cls, version, sliced=True))
        _sliced_encoders[cls, version] = found
    return found


def _in_one_step(encode: Encode[M]) -> SlicedEncode[M]:
    def encode_in_one_step(
        message: M, pieces: list[Any], cuts: list[int]
    ) -> Generator[None, None, None]:
        encode(message, pieces, cuts)
        yield

    return encode_in_one_step


def encoder(cls: type[M], version: int) -> Callable[[M], bytes]:
    """The function `encode(message) -> bytes`. Records must be bytes-like."""
    encode = raw_encoder(cls, version)

    def encode_to_bytes(message: M) -> bytes:
        pieces: list[Any] = []
        cuts: list[int] = []
        encode(message, pieces, cuts)
        if cuts:
            kind = type(pieces[cuts[0]]).__name__
            raise ProtocolError(
                f"records are a {kind}, which only parts_encoder can pass on",
                api=cls.NAME,
                version=version,
            )
        return b"".join(pieces)

    return encode_to_bytes


def parts_encoder(cls: type[M], version: int) -> Callable[[M], list[bytes | Sliceable]]:
    """The function `encode(message) -> parts`. Records that are not bytes-like (they only have a
    length, as a part of a file has) are parts of their own; all else is joined between them."""
    encode = raw_encoder(cls, version)

    def encode_to_parts(message: M) -> list[bytes | Sliceable]:
        pieces: list[Any] = []
        cuts: list[int] = []
        encode(message, pieces, cuts)
        return join_parts(pieces, cuts)

    return encode_to_parts


def join_parts(pieces: list[Any], cuts: list[int]) -> list[bytes | Sliceable]:
    """Joins the bytes-like pieces between those at `cuts`. Empty stretches are left out."""
    if not cuts:
        return [b"".join(pieces)]
    parts: list[bytes | Sliceable] = []
    start = 0
    for cut in cuts:
        if cut > start:
            parts.append(b"".join(pieces[start:cut]))
        parts.append(pieces[cut])
        start = cut + 1
    if start < len(pieces):
        parts.append(b"".join(pieces[start:]))
    return parts


#: What `join_in_steps` joins in one step: about a quarter of a millisecond.
PIECES_PER_STEP = 4096


def join_in_steps(
    steps: Iterable[None],
    pieces: list[Any],
    cuts: list[int],
    join: Callable[[list[Any], list[int]], list[bytes | Sliceable]] = join_parts,
) -> Generator[None, None, list[bytes | Sliceable]]:
    """Join the pieces that the steps of a sliced encoder make, while it makes them.

    A long response has a million: to join and to free them at once takes as long as 100 ms.
    """
    parts: list[bytes | Sliceable] = []
    for _ in steps:
        if len(pieces) >= PIECES_PER_STEP:
            parts += join(pieces, cuts)
            pieces.clear()
            cuts.clear()
        yield
    if pieces:
        parts += join(pieces, cuts)
    return parts


def encode_with_version(message: Message, version: int) -> bytes:
    """A stored message as Kafka stores it: its version as int16, then its bytes."""
    return _VERSION.pack(version) + encoder(type(message), version)(message)


def read_stored_version(buffer: Buffer) -> int:
    """The version that a stored message begins with."""
    if len(buffer) < 2:
        raise ProtocolError("no room for the version of a stored message", api="stored message")
    version: int = _VERSION.unpack_from(buffer, 0)[0]
    return version


def decode_with_version(cls: type[M], buffer: Buffer) -> M:
    """A stored message from its version and bytes, which must end with it."""
    version = read_stored_version(buffer)
    message, position = decoder(cls, version)(buffer, 2)
    if position != len(buffer):
        reason = f"{len(buffer) - position} bytes follow the end of the message"
        raise ProtocolError(reason, api=cls.NAME, version=version)
    return message


def decoder_source(cls: type[Message], version: int) -> str:
    """The source that `decoder` compiles, for people who want to read it."""
    return DecodeCompiler(_layout(cls, version)).source


def encoder_source(cls: type[Message], version: int) -> str:
    """The source that the encoders compile, for people who want to read it."""
    return EncodeCompiler(_layout(cls, version)).source


def _layout(cls: type[Message], version: int) -> Layout:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        reason = f"there are versions {cls.MIN_VERSION} to {cls.MAX_VERSION} only"
        raise UnsupportedVersionError(reason, api=cls.NAME, version=version)
    return Layout(cls, version, flexible=version >= cls.FIRST_FLEXIBLE_VERSION)


def _compile_decoder(cls: type[M], version: int, *, sliced: bool = False) -> Decode[M]:
    compiler = DecodeCompiler(_layout(cls, version), sliced=sliced)

    def failure(error: Exception, lines: LineFields) -> ProtocolError:
        traceback = _innermost(error, code)
        field = _field_past_the_end(lines[traceback.tb_lineno], traceback.tb_frame.f_locals)
        if isinstance(error, Malformed):
            reason = str(error)
        elif isinstance(error, UnicodeDecodeError):
            reason = f"is not UTF-8: {error.reason}"
        else:
            reason = "the message ends before the field does"
        return ProtocolError(reason, api=cls.NAME, version=version, field=field)

    names = compiler.names | {"ERRORS": _DECODE_ERRORS, "failure": failure}
    function = _execute(compiler.source, "decode", cls, version, names)
    code = function.__code__
    return cast("Decode[M]", function)


def _compile_encoder(cls: type[M], version: int, *, sliced: bool = False) -> Encode[M]:
    compiler = EncodeCompiler(_layout(cls, version), sliced=sliced)

    def failure(error: Exception, lines: LineFields) -> ProtocolError:
        traceback = _innermost(error, code)
        field = _field_that_fails(lines[traceback.tb_lineno], traceback)
        if isinstance(error, Malformed):
            return ProtocolError(str(error), api=cls.NAME, version=version, field=field)
        reason = f"the value cannot be encoded: {error}"
        return UnencodableError(reason, api=cls.NAME, version=version, field=field)

    names = compiler.names | {"ERRORS": _ENCODE_ERRORS, "failure": failure}
    function = _execute(compiler.source, "encode", cls, version, names)
    code = function.__code__
    return cast("Encode[M]", function)


def _execute(
    source: str, name: str, cls: type[Message], version: int, names: dict[str, object]
) -> Any:  # a function that did not exist before
    exec(compile(source, f"<{name} {cls.NAME} version {version}>", "exec"), names)
    return names[name]


def _innermost(error: Exception, code: CodeType) -> TracebackType:
    """The traceback entry of the compiled function itself, not of what it called."""
    traceback = error.__traceback__
    assert traceback is not None
    assert traceback.tb_frame.f_code is code
    return traceback


def _field_past_the_end(fields: Fields, local: dict[str, Any]) -> str:
    """The first of the fields of a line that the bytes left do not cover."""
    left = local["end"] - local["p"]
    for field, code, _ in fields:
        left -= struct.calcsize(">" + code)
        if left < 0:
            return field
    return fields[0][0]


def _field_that_fails(fields: Fields, traceback: TracebackType) -> str:
    """Packs the fields of a line one by one to find the one that cannot be packed."""
    frame = traceback.tb_frame
    for field, code, expression in fields:
        if code:
            try:
                value = eval(expression, frame.f_globals, frame.f_locals)  # our own
                struct.pack(">" + code, value)
            except _ENCODE_ERRORS:
                return field
    return next((field for field, code, _ in fields if not code), fields[0][0])
