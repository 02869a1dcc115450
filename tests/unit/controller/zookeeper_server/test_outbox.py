"""The order in which responses leave, and that none overtakes the commit that it shows."""

from __future__ import annotations

import asyncio
from typing import cast

from ottla.controller.tree.tree_file import TreeCommits
from ottla.controller.zookeeper_server.connection import Connection, Outbox


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Peer:
    def __init__(self) -> None:
        self.transport = Transport()


class Commits:
    """The next barrier is what the test puts there; None: everything is durable."""

    def __init__(self) -> None:
        self.next: asyncio.Future[None] | None = None

    def barrier(self) -> asyncio.Future[None] | None:
        return self.next


def outbox(commits: Commits) -> tuple[Outbox, list[Exception]]:
    failures: list[Exception] = []
    return Outbox(cast("TreeCommits", commits), failures.append), failures


def flush(box: Outbox, peer: Peer, data: bytes | None) -> None:
    box.add(cast("Connection", peer), data)
    box.flush()


async def test_without_changes_a_response_is_sent_at_once() -> None:
    box, _ = outbox(Commits())
    peer = Peer()
    flush(box, peer, b"1")
    assert peer.transport.written == [b"1"]


async def test_a_response_waits_for_its_commit() -> None:
    commits = Commits()
    box, _ = outbox(commits)
    peer = Peer()
    commits.next = asyncio.get_running_loop().create_future()
    flush(box, peer, b"1")
    await asyncio.sleep(0)
    assert peer.transport.written == []
    commits.next.set_result(None)
    await asyncio.sleep(0)
    assert peer.transport.written == [b"1"]


async def test_a_read_after_the_commit_does_not_overtake_the_responses_that_waited_for_it() -> None:
    commits = Commits()
    box, _ = outbox(commits)
    peer, other = Peer(), Peer()
    barrier = commits.next = asyncio.get_running_loop().create_future()
    flush(box, peer, b"written")
    barrier.set_result(None)  # its callback runs in the next turn
    commits.next = None
    flush(box, peer, b"read")
    flush(box, other, b"other")
    flush(box, peer, None)
    assert not peer.transport.written
    await asyncio.sleep(0)
    assert b"".join(peer.transport.written) == b"writtenread"
    assert other.transport.written == [b"other"]
    assert peer.transport.closed


async def test_a_failed_commit_sends_nothing() -> None:
    commits = Commits()
    box, failures = outbox(commits)
    peer = Peer()
    barrier = commits.next = asyncio.get_running_loop().create_future()
    flush(box, peer, b"1")
    error = OSError("no space")
    barrier.set_exception(error)
    await asyncio.sleep(0)
    assert peer.transport.written == []
    assert failures == [error]
