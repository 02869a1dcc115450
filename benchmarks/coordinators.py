"""Measurements of groups and transactions; each gives figures by name.

The clients are as small as can be made, so that the broker is what is measured: one connection
per member, requests encoded once, responses decoded only as far as needed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

import uvloop
from confluent_kafka import Producer

from benchmarks import clients, targets
from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

Measurements = dict[str, float]
T = TypeVar("T")

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, COMMIT_VERSION = 7, 5, 4, 7
REBALANCE_IN_PROGRESS = 27
UNKNOWN_MEMBER_ID = 25
SESSION_MS = 60_000
READY_DEADLINE_S = 60.0
COMMITTERS = 50
OFFSETS_PER_COMMIT = 100
TRANSACTION_RECORDS = 100


class Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4])
            if len(self._buffer) >= 4 + size and self._waiting is not None:
                frame = bytes(self._buffer[4 : 4 + size])
                del self._buffer[: 4 + size]
                self._waiting.set_result(frame)

    async def exchange(self, frame: bytes) -> bytes:
        """Sends a frame; returns the response without its length."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await self._waiting

    async def call(self, message: Message, version: int) -> Message:
        response = await self.exchange(encode_request(1, "bench", message, version))
        return decode_response(response, message.API_KEY, version)[1]

    def close(self) -> None:
        self._transport.close()


async def connect(bootstrap: str) -> Wire:
    host, _, port = bootstrap.partition(":")
    _, wire = await asyncio.get_running_loop().create_connection(Wire, host, int(port))
    return wire


class Member:
    """A consumer that has nothing to consume."""

    def __init__(self, wire: Wire, group: str) -> None:
        self._wire = wire
        self.group = group
        self.member_id = ""
        self.generation = -1  # that it has an assignment of
        self.metadata = bytes(60)

    async def join_and_sync(self) -> bool:
        """One round; false if the group rebalanced meanwhile."""
        self.generation = -1
        joined = await self._join()
        if joined.error_code:  # here is the member id to come back with
            self.member_id = joined.member_id
            joined = await self._join()
        assert joined.error_code == 0, joined
        self.member_id = joined.member_id
        assignments = [
            SyncGroupRequestAssignment(member.member_id, bytes(100)) for member in joined.members
        ]
        synced = await self._wire.call(
            SyncGroupRequest(
                *(self.group, joined.generation_id, self.member_id, None, "consumer", "range"),
                assignments,
            ),
            SYNC_VERSION,
        )
        assert isinstance(synced, SyncGroupResponse)
        if not synced.error_code:
            self.generation = joined.generation_id
        return not synced.error_code

    async def _join(self) -> JoinGroupResponse:
        response = await self._wire.call(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("range", self.metadata)],
            ),
            JOIN_VERSION,
        )
        assert isinstance(response, JoinGroupResponse)
        return response

    async def settle(self) -> None:
        """Join, and join again as long as others do."""
        while not await self.join_and_sync():
            pass

    async def heartbeat(self) -> int:
        response = await self._wire.call(
            HeartbeatRequest(self.group, self.generation, self.member_id), HEARTBEAT_VERSION
        )
        assert isinstance(response, HeartbeatResponse)
        return response.error_code

    async def stay(self, until: Callable[[], bool]) -> None:
        """Follow rebalances until all is as it should be."""
        await self.settle()
        while not until():
            if await self.heartbeat() == REBALANCE_IN_PROGRESS:
                await self.settle()
            await asyncio.sleep(0.05)


async def form_group(bootstrap: str, group: str, size: int) -> list[Member]:
    """A stable group of that many members."""
    address = await coordinator_of(bootstrap, group)
    members = [Member(await connect(address), group) for _ in range(size)]

    def is_complete() -> bool:
        generation = members[0].generation
        return generation >= 0 and all(member.generation == generation for member in members)

    await asyncio.gather(*(member.stay(is_complete) for member in members))
    return members


async def coordinator_of(bootstrap: str, group: str) -> str:
    """The address of the coordinator of a group, when it serves it: the first question creates the
    internal topic. Workers share the groups of a machine."""
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        wire = await connect(bootstrap)
        try:
            found = await wire.call(FindCoordinatorRequest(group, 0), 3)
        finally:
            wire.close()
        assert isinstance(found, FindCoordinatorResponse)
        if not found.error_code:
            address = f"{found.host}:{found.port}"
            member = await connect(address)
            served = await Member(member, group).heartbeat() == UNKNOWN_MEMBER_ID
            member.close()
            if served:
                return address
        await asyncio.sleep(0.1)
    raise TimeoutError(f"no coordinator of {group}")


async def in_portions(works: Iterable[Callable[[], Awaitable[T]]], portion: int = 50) -> list[T]:
    """So that thousands of connections are not opened at one moment."""
    gate = asyncio.Semaphore(portion)

    async def guarded(work: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await work()

    return await asyncio.gather(*(guarded(work) for work in works))


async def _heartbeats(target: targets.Target, scale: float) -> Measurements:
    groups, interval_s, rounds = int(1000 * scale), 3.0, 3

    def forming(number: int) -> Callable[[], Awaitable[list[Member]]]:
        return lambda: form_group(target.bootstrap, f"beating-{target.round}-{number}", 3)

    formed = await in_portions(forming(number) for number in range(groups))
    members = [member for group in formed for member in group]
    before = target.processor_seconds()

    async def beat(number: int, member: Member) -> None:
        await asyncio.sleep(interval_s * number / len(members))
        for _ in range(rounds):
            assert await member.heartbeat() == 0
            await asyncio.sleep(interval_s)

    begun = time.perf_counter()
    await asyncio.gather(*(beat(number, member) for number, member in enumerate(members)))
    used = target.processor_seconds() - before
    share = used / (time.perf_counter() - begun)
    return {f"{groups} groups of 3 heartbeating every 3 s: broker CPU %": share * 100}


async def _rebalance(target: targets.Target, scale: float) -> Measurements:
    members = await form_group(target.bootstrap, f"hundred-{target.round}", 100)
    taken = []
    before = target.processor_seconds()
    for number in range(max(3, int(10 * scale))):
        for member in members:
            member.metadata = (number + 1).to_bytes(
                60
            )  # else who is not the leader changes nothing
        begun = time.perf_counter()
        assert all(await asyncio.gather(*(member.join_and_sync() for member in members)))
        taken.append(time.perf_counter() - begun)
    used = (target.processor_seconds() - before) / len(taken)
    return {
        "rebalance of 100 members: ms": sorted(taken)[len(taken) // 2] * 1000,
        "rebalance of 100 members: broker CPU ms": used * 1000,
    }


async def _commits(target: targets.Target, scale: float) -> Measurements:
    clients.create_topic(target.bootstrap, "committed", 10)
    addresses = [
        await coordinator_of(target.bootstrap, f"committing-{number}")
        for number in range(COMMITTERS)
    ]
    deadline = time.perf_counter() + max(2.0, 10 * scale)
    done = 0

    async def commit(number: int) -> None:
        nonlocal done
        wire = await connect(addresses[number])
        row = OffsetCommitRequestPartition(number % 10, 5, committed_metadata="")
        request = OffsetCommitRequest(
            f"committing-{number}", -1, "", topics=[OffsetCommitRequestTopic("committed", [row])]
        )
        frame = encode_request(1, "bench", request, COMMIT_VERSION)
        while time.perf_counter() < deadline:
            response = await wire.exchange(frame)
            assert response.endswith(b"\0\0"), response  # the error code comes last
            done += 1
        wire.close()

    before, begun = target.processor_seconds(), time.perf_counter()
    await asyncio.gather(*(commit(number) for number in range(COMMITTERS)))
    used = target.processor_seconds() - before
    return {
        f"offset commits/s, {COMMITTERS} connections": done / (time.perf_counter() - begun),
        "offset commit: broker CPU us": used / done * 1e6,
    }


async def _write_offsets(target: targets.Target, count: int) -> None:
    clients.create_topic(target.bootstrap, "loaded", OFFSETS_PER_COMMIT)

    async def commit(number: int) -> None:
        wire = await connect(await coordinator_of(target.bootstrap, f"loading-{number}"))
        for offset in range(count // OFFSETS_PER_COMMIT // COMMITTERS):
            rows = [
                OffsetCommitRequestPartition(index, offset, committed_metadata="")
                for index in range(OFFSETS_PER_COMMIT)
            ]
            topics = [OffsetCommitRequestTopic("loaded", rows)]
            request = OffsetCommitRequest(f"loading-{number}", -1, "", topics=topics)
            await wire.call(request, COMMIT_VERSION)
        wire.close()

    await asyncio.gather(*(commit(number) for number in range(COMMITTERS)))


async def _wait_for_offsets(target: targets.Target) -> float:
    """Seconds from the command to start until a broker returns a committed offset."""
    request = OffsetFetchRequest("loading-0", [OffsetFetchRequestTopic("loaded", [0])])
    while True:
        try:
            wire = await connect(target.bootstrap)
            while True:
                response = await wire.call(request, 5)
                assert isinstance(response, OffsetFetchResponse)
                if not response.error_code:
                    assert response.topics[0].partitions[0].committed_offset > 0
                    wire.close()
                    return time.perf_counter() - target.started_at
                await asyncio.sleep(0.01)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


def loading(target: targets.Target, scale: float) -> Measurements:
    """A million offset records are there when the broker starts."""
    count = int(1_000_000 * scale)
    uvloop.run(_write_offsets(target, count))
    target.stop()
    target.launch()
    taken = uvloop.run(_wait_for_offsets(target))
    label = f"start to served with {count:,} offset records"
    return {f"{label}: s": taken, f"{label}: broker CPU s": target.processor_seconds()}


def heartbeats(target: targets.Target, scale: float) -> Measurements:
    return uvloop.run(_heartbeats(target, scale))


def rebalance(target: targets.Target, scale: float) -> Measurements:
    return uvloop.run(_rebalance(target, scale))


def commits(target: targets.Target, scale: float) -> Measurements:
    return uvloop.run(_commits(target, scale))


def transactional_produce(target: targets.Target, scale: float) -> Measurements:
    """Transactions of a hundred records over six partitions, one after the other."""
    clients.create_topic(target.bootstrap, "transactional", 6)
    producer = Producer(
        {"bootstrap.servers": target.bootstrap, "transactional.id": "bench", "linger.ms": 0}
    )
    producer.init_transactions(READY_DEADLINE_S)
    value = bytes(100)
    count = max(20, int(300 * scale))
    before, begun = target.processor_seconds(), time.perf_counter()
    for _ in range(count):
        producer.begin_transaction()
        for number in range(TRANSACTION_RECORDS):
            producer.produce("transactional", value, partition=number % 6)
        producer.commit_transaction(READY_DEADLINE_S)
    taken = time.perf_counter() - begun
    used = target.processor_seconds() - before
    return {
        "transactions of 100 records: records/s": count * TRANSACTION_RECORDS / taken,
        "transaction of 100 records: broker CPU ms": used / count * 1000,
    }
