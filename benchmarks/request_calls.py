"""Python calls and source files that one plain Produce and one plain Fetch pass, and their time.

    python -m benchmarks.request_calls [--requests N] [--list]

The product's own connection, request channel, handlers and logs run in this process, on files of a
temporary directory; nothing is counted of the client, the event loop and the standard library.
Produce: one partition, ten records, acks=1, no authorizer. Fetch: one partition with records, no
session. Calls are counted once the path is warm; a resumed generator or coroutine counts as a call.
Codecs that are compiled for a version count as one file each. The time is processor time, with the
client.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from time import process_time
from types import CodeType, FrameType

from ottla.broker.requests.api_routes import entries_of
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.storage.files.fs import RealFileSystem
from tests.doubles.network import SIZE, running_network
from tests.doubles.replicas import TOPIC, TOPIC_ID
from tests.doubles.storage_logs import batch_of
from tests.unit.broker.handlers.scene import DataPath

PRODUCE_VERSION, FETCH_VERSION = 9, 12
WARM_UP = 50
ROUNDS = 9

_ROOT = Path(__file__).resolve().parents[1]
_PRODUCT = tuple(f"{_ROOT}/{part}/" for part in ("broker", "protocol", "storage", "controller"))


class Calls:
    """Counts the calls of product code, by function."""

    def __init__(self) -> None:
        self.by_code: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.by_code[frame.f_code] += 1

    def of_product(self) -> dict[CodeType, int]:
        return {code: count for code, count in self.by_code.items() if _is_product(code)}

    @staticmethod
    def files(codes: dict[CodeType, int]) -> tuple[set[str], set[str]]:
        """(source files, compiled codecs)."""
        names = {code.co_filename for code in codes}
        compiled = {name for name in names if name.startswith("<")}
        return names - compiled, compiled


def _is_product(code: CodeType) -> bool:
    name = code.co_filename
    if name.startswith("<"):
        return not name.startswith(("<frozen", "<string>"))
    return name.startswith(_PRODUCT)


def _produce() -> Message:
    data = [PartitionProduceData(0, batch_of(10))]
    return ProduceRequest(None, 1, 1_000, [TopicProduceData(TOPIC, data)])


def _fetch() -> Message:
    row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 10)
    return FetchRequest(
        topics=[FetchTopic(TOPIC, TOPIC_ID, [row])], max_wait_ms=100, min_bytes=1, session_epoch=-1
    )


async def _exchange(client: socket.socket, frame: bytes) -> None:
    """Send one request and receive its response."""
    loop = asyncio.get_running_loop()
    client.send(frame)
    received = bytearray()
    while len(received) < 4 or len(received) < 4 + SIZE.unpack_from(received)[0]:
        received += await loop.sock_recv(client, 1 << 16)


async def measure(requests: int, directory: str, *, lists: bool) -> None:
    path = DataPath(directories=[directory], file_system=RealFileSystem())
    path.lead()
    path.append(10)
    entries = (*entries_of(path.produce), *entries_of(path.fetch))
    async with running_network(*entries) as network:
        for name, request, version in (
            ("Fetch", _fetch(), FETCH_VERSION),
            ("Produce", _produce(), PRODUCE_VERSION),
        ):
            client = network.raw_socket()
            frame = bytes(encode_request(1, "client", request, version))
            for _ in range(WARM_UP):
                await _exchange(client, frame)
            calls = Calls()
            sys.setprofile(calls)
            await _exchange(client, frame)
            sys.setprofile(None)
            times = []
            gc.disable()
            for _ in range(ROUNDS):
                begin = process_time()
                for _ in range(requests):
                    await _exchange(client, frame)
                times.append((process_time() - begin) / requests)
                gc.collect()
            gc.enable()
            client.close()
            found = calls.of_product()
            files, compiled = calls.files(found)
            print(
                f"{name}: {sum(found.values())} calls in {len(files)} files "
                f"and {len(compiled)} compiled codecs; "
                f"{min(times) * 1e6:.1f} us at best, "
                f"{median(times) * 1e6:.1f} us in the middle"
            )
            if lists:
                for code, count in found.items():
                    where = code.co_filename.removeprefix(f"{_ROOT}/")
                    print(f"  {count} {where}:{code.co_firstlineno} {code.co_qualname}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000, help="in each of nine rounds")
    parser.add_argument("--list", action="store_true", help="list the calls")
    parser.add_argument("--directory", help="for the logs; one on a disk, not tmpfs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        asyncio.run(measure(options.requests, directory, lists=options.list))


if __name__ == "__main__":
    main()
