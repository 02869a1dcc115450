"""One encoding of an UpdateMetadata request for all brokers that get it.

The requests to the brokers differ in the broker epoch only. With a hundred brokers and a hundred
thousand partitions, encoding each of them would take the controller many seconds.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from ottla.protocol.codec import join_in_steps, sliced_encoder
from ottla.protocol.message import Message
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.primitives import Buffer
from ottla.protocol.steps import Steps, run_in_turns

#: The first version that has a broker epoch.
MIN_VERSION = 5
_FIRST_WITH_IS_KRAFT_CONTROLLER = 8

# Controller id and epoch, 4 bytes each, stand before the broker epoch; from version 8 one more.
_EPOCHS = 8
_BROKER_EPOCH = struct.Struct(">q")


class EncodedUpdateMetadata(Message):
    """An UpdateMetadata request that is encoded already."""

    __slots__ = ("pieces",)

    NAME = UpdateMetadataRequest.NAME
    API_KEY = UpdateMetadataRequest.API_KEY
    MIN_VERSION = MIN_VERSION
    MAX_VERSION = UpdateMetadataRequest.MAX_VERSION
    FIRST_FLEXIBLE_VERSION = UpdateMetadataRequest.FIRST_FLEXIBLE_VERSION

    def __init__(self, pieces: tuple[Buffer, ...]) -> None:
        self.pieces = pieces

    def encode_pieces(self, version: int, pieces: list[Any]) -> None:
        pieces += self.pieces


class SharedMetadata:
    """The encoding of a request in one version, made when the first broker needs it."""

    def __init__(self, request: UpdateMetadataRequest, version: int) -> None:
        """`request` is that to any of the brokers."""
        self._request = request
        self._version = version
        self._lock = asyncio.Lock()
        self._encoded: list[bytes] = []

    async def request_for(self, broker_epoch: int) -> EncodedUpdateMetadata:
        """The request with the broker epoch of one broker."""
        async with self._lock:
            if not self._encoded:
                self._encoded = await run_in_turns(_encode(self._request, self._version))
        first, *others = self._encoded
        encoded = memoryview(first)
        start = _EPOCHS + (1 if self._version >= _FIRST_WITH_IS_KRAFT_CONTROLLER else 0)
        end = start + _BROKER_EPOCH.size
        return EncodedUpdateMetadata(
            (encoded[:start], _BROKER_EPOCH.pack(broker_epoch), encoded[end:], *others)
        )


def _encode(request: UpdateMetadataRequest, version: int) -> Steps[list[bytes]]:
    """The request, in several parts if it is long."""
    pieces: list[Any] = []
    cuts: list[int] = []  # there are no records
    steps = sliced_encoder(UpdateMetadataRequest, version)(request, pieces, cuts)
    parts: list[Any] = yield from join_in_steps(steps, pieces, cuts)
    return parts
