"""What a client pushes is bounded before it is decoded."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest

from ottla.broker.handlers.admin.client_telemetry import ClientMetricsHandlers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from tests.doubles.request_context import Asked

MAX_BYTES = 1 << 20
ZEROS = bytes(32 << 20)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


class Workers:
    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


async def push(codec: int, data: bytes) -> int:
    """The error code; fails if anything was kept."""

    def kept(*_: object) -> None:
        raise AssertionError("nothing is kept of it")

    manager = SimpleNamespace(max_bytes=MAX_BYTES, accept=lambda *_: None)
    exported = SimpleNamespace(add=kept)
    parts: list[Any] = [manager, exported, Workers()]
    handlers = ClientMetricsHandlers(*parts)
    request = PushTelemetryRequest(compression_type=codec, metrics=data)
    response = await handlers.push(Asked(lambda *_: None, request, 0).context, request)
    return response.error_code


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (ZSTD, bytes(cramjam.zstd.compress(ZEROS, 3))),
        (LZ4, bytes(cramjam.lz4.compress(ZEROS))),
        (GZIP, gzip.compress(ZEROS, 1)),
        (SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(20)),  # 2 GB, it says
        (NONE, b"\x0a" * 900_000),
        (NONE, b"\n\x80\x80\x80\x80\x08" + bytes(100)),
    ],
    ids=["zstd", "lz4", "gzip", "snappy", "nested", "length"],
)
async def test_bombs_and_lies_are_invalid_records(codec: int, data: bytes) -> None:
    assert await push(codec, data) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [-1, 5])
async def test_an_unknown_codec(codec: int) -> None:
    assert await push(codec, b"x") == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
