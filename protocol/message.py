"""Base classes of the generated messages.

Messages are plain objects with `__slots__`: reading and writing a field costs what an attribute
costs. They compare by value, are mutable and therefore not hashable, and know nothing of bytes:
`ottla.protocol.codec` encodes and decodes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol


class Sliceable(Protocol):
    """A buffer that only the network layer can send, such as a part of a file: it has a length."""

    def __len__(self) -> int: ...


#: What a `records` field of a request holds: encoded record batches, not decoded any further.
RecordsBuffer = bytes | bytearray | memoryview

#: What a `records` field of a response may hold; a `Sliceable` never passes through our memory.
Records = bytes | bytearray | memoryview | Sliceable

#: The default of arguments whose real default is a new empty list or a new struct. Any, because
#: one object stands in for all those types.
EMPTY: Final[Any] = type("Empty", (), {"__repr__": lambda _: "EMPTY"})()


class Struct:
    """A group of fields with a schema. `FIELDS` holds one definition line for each slot, in wire
    order (see `ottla.protocol.schema`)."""

    __slots__: tuple[str, ...] = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__slots__
            if name != "unknown_tagged_fields" or getattr(self, name)
        ]
        return f"{self.__class__.__name__}({', '.join(shown)})"


class Message(Struct):
    """A whole request, response or stored message, with the versions it has."""

    __slots__ = ()

    #: Kafka's name, such as "ProduceRequest".
    NAME: ClassVar[str] = ""
    #: The API key of requests and responses, -1 for stored messages.
    API_KEY: ClassVar[int] = -1
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = -1
    #: The first version with compact lengths and tagged fields (KIP-482); above MAX_VERSION if
    #: there is none.
    FIRST_FLEXIBLE_VERSION: ClassVar[int] = 32767

    #: For messages of which most is encoded already: takes the place of the compiled encoder, and
    #: appends the pieces of the message in a version.
    encode_pieces: ClassVar[Callable[[Any, int, list[Any]], None] | None] = None
