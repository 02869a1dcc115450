"""Finds that an address of `zookeeper.connect` is that of a Kafka broker.

A broker takes the first bytes of a ZooKeeper client for a Produce request that awaits no response:
it stays silent or closes the connection. So it is asked by Kafka's protocol, after all hosts
have failed: a ZooKeeper server would log a request that it cannot read.
"""

import asyncio
import struct
from collections.abc import Sequence
from urllib.parse import urlsplit

DEFAULT_PORT = 2181
SECONDS = 2.0
"""For all hosts together: the start has waited for them already."""

_CORRELATION_ID = 0x4F74746C
# ApiVersions (18) in version 0, which every broker since 0.10 has, without a client id.
_REQUEST = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)
_RESPONSE = struct.Struct(">ii")  # length, correlation id


async def kafka_port(hosts: str) -> str:
    """The first of `hosts` (`h1:2181,h2:2181`) where a Kafka broker responds on a plaintext
    listener; empty without one."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _first(hosts.split(","))
    except TimeoutError:
        return ""


async def _first(hosts: Sequence[str]) -> str:
    for host in hosts:
        address = urlsplit(f"//{host}")
        try:
            if await _responds(address.hostname or "", address.port or DEFAULT_PORT):
                return host
        except (OSError, UnicodeError, asyncio.IncompleteReadError):
            continue
    return ""


async def _responds(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        _, correlation_id = _RESPONSE.unpack(await reader.readexactly(_RESPONSE.size))
    finally:
        writer.close()
    return bool(correlation_id == _CORRELATION_ID)
