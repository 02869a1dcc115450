"""A simulated object store, which all brokers share, with troubles of its own.

Each request takes time, in which everything else continues. It may be refused (503), done and
reported as failed, return a damaged or shortened body, be slow, or the store is away. A trap
reports to a trouble that a certain step of a copy, a deletion or a read has been reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ottla.storage.remote.object_store import StoredObject
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tests.simulation.cluster.disk import ProcessDied
from tests.simulation.cluster.loop import Process
from tests.simulation.cluster.remote_threads import wait

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

# One way of a request when the store is well, at most.
SECONDS = 0.01
# A request to a store that is away fails after so long at most.
AWAY_SECONDS = 4.0


@dataclass
class StoreFaults:
    """Shares of all requests, from 0 to 1, and how long a way takes at most."""

    refused: float = 0.0
    lost_replies: float = 0.0
    damaged: float = 0.0
    is_away: bool = False
    seconds: float = SECONDS


class Step(NamedTuple):
    """A step of a request: `kind` is put, get or delete."""

    kind: str
    suffix: str
    is_done: bool


class Trap:
    """`caught` gets the number of the broker that reached the step. Its request is held there."""

    def __init__(self, step: Step, left: int, held_seconds: float) -> None:
        self.step = step
        self.left = left
        self.held_seconds = held_seconds
        self.caught: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def catches(self, kind: str, key: str, *, is_done: bool) -> bool:
        step = self.step
        if (step.kind, step.is_done) != (kind, is_done) or not key.endswith(step.suffix):
            return False
        self.left -= 1
        return self.left < 0


class SimulatedObjectStore:
    """What is stored, and what is wrong with the store now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"object store {world.seed}")
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.trap: Trap | None = None
        #: How often something was requested, and how often a trouble met its step.
        self.requests = {"put": 0, "get": 0, "delete": 0}
        self.caught = 0
        self.heal()

    def heal(self) -> None:
        self.faults = StoreFaults()
        self.trap = None


class StoreConnection:
    """`ottla.storage.remote.object_store.ObjectStore` of one process, or of a check (`None`).

    A check waits for nothing and meets no trouble.
    """

    def __init__(
        self, store: SimulatedObjectStore, process: Process | None, broker_id: int
    ) -> None:
        self._store = store
        self._process = process
        self._broker_id = broker_id

    def put(self, key: str, content: Iterable[bytes]) -> int:
        self._begin("put", key)
        parts = []
        for part in content:
            parts.append(bytes(part))
            self._wait(self._store.faults.seconds)
        body = b"".join(parts)
        self._store.objects[key] = body, self._store.world.now_ms()
        self._end("put", key)
        return len(body)

    def get(self, key: str, limit: int) -> bytes:
        self._begin("get", key)
        body = self._object(key)
        if len(body) > limit:
            raise RemoteObjectCorruptError(f"The object {key} has more than {limit} bytes")
        self._end("get", key)
        store = self._store
        if self._is_drawn(store.faults.damaged):
            return body[: store.random.randrange(len(body) + 1)]
        return body

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._begin("get", key)
        part = self._object(key)[position : position + size]
        if len(part) < size:
            raise RemoteObjectCorruptError(f"The object {key} ends before {position + size}")
        self._end("get", key)
        store = self._store
        if not self._is_drawn(store.faults.damaged):
            return part
        if store.random.random() < 0.5:
            raise RemoteStorageError(f"the body of {key} ends early")
        at = store.random.randrange(size)
        return part[:at] + bytes([part[at] ^ 0x55]) + part[at + 1 :]

    def size(self, key: str) -> int:
        self._begin("get", key)
        return len(self._object(key))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._begin("delete", key)
            self._store.objects.pop(key, None)
            self._end("delete", key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for key, (body, modified_ms) in sorted(self._store.objects.items()):
            if key.startswith(prefix):
                yield StoredObject(key, len(body), modified_ms)

    def close(self) -> None: ...

    def _object(self, key: str) -> bytes:
        found = self._store.objects.get(key)
        if found is None:
            raise RemoteResourceNotFoundError(f"The object {key} does not exist")
        return found[0]

    def _begin(self, kind: str, key: str) -> None:
        """Until the store does what is requested."""
        store = self._store
        if self._process is not None:
            store.requests[kind] += 1
        self._spring(kind, key, is_done=False)
        self._wait(store.faults.seconds)
        if self._process is None:
            return
        if store.faults.is_away:
            self._wait(AWAY_SECONDS)
            raise RemoteStorageError(f"the store cannot be reached for {key}")
        if self._is_drawn(store.faults.refused):
            raise RemoteStorageError(f"503 Slow Down for {key}")

    def _end(self, kind: str, key: str) -> None:
        """Until the process has the reply."""
        self._spring(kind, key, is_done=True)
        self._wait(self._store.faults.seconds)
        if self._is_drawn(self._store.faults.lost_replies):
            raise RemoteStorageError(f"no reply for {key}")

    def _is_drawn(self, share: float) -> bool:
        return self._process is not None and share > 0 and self._store.random.random() < share

    def _wait(self, seconds: float) -> None:
        if self._process is None:
            return
        if self._process.dead:  # what handles errors would go on
            raise ProcessDied("object store")
        wait(self._store.random.uniform(0, seconds))

    def _spring(self, kind: str, key: str, *, is_done: bool) -> None:
        trap = self._store.trap
        if self._process is None or trap is None:
            return
        if trap.catches(kind, key, is_done=is_done):
            self._store.trap = None
            self._store.caught += 1
            state = "done" if is_done else "begun"
            self._store.world.note(f"b{self._broker_id}: {kind} of {key} is {state}")
            if not trap.caught.done():
                trap.caught.set_result(self._broker_id)
            wait(trap.held_seconds)
