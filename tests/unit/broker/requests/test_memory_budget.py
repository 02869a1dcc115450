"""The account of memory: who gets some, who waits, in which order, and who is closed."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.requests.memory_budget import (
    LEAST_PROGRESS_BYTES,
    LONGEST_LOOK_SECONDS,
    SILENCE_SECONDS,
    SOON_LOOKS,
    STALL_SECONDS,
    MemoryBudget,
    client_of,
)
from ottla.broker.requests.memory_pool import GRANTS_AT_ONCE, UNLIMITED, Lease, Pool
from ottla.broker.requests.request_context import ANONYMOUS, Principal
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.registry import ApiKey

ALICE = Principal("User", "alice")
MIB = 1 << 20


class Sender:
    """A connection, as the account sees it."""

    def __init__(self, host: str = "10.0.0.1", principal: Principal = ANONYMOUS) -> None:
        self.client_host = host
        self.principal = principal
        self.memory: Any = None
        self.received_bytes = self.filled_bytes = 0
        self.unacknowledged_bytes = 0
        self.leases: list[Lease] = []
        self.is_fast = False

    def arrives_fast(self, size: int) -> bool:
        return self.is_fast

    def receive(self, size: int) -> None:
        self.filled_bytes += size
        self.received_bytes += size

    def set_aside(self) -> None:
        self.memory.set_aside(self, self.filled_bytes)

    def held_leases(self) -> list[Lease]:
        return self.leases


def pool_of(limit: int, share: int = 1) -> Pool:
    pool = Pool("test", share)
    pool.limit = limit
    return pool


class Waiters:
    """Those that wait in a pool, by name, in the order in which they got something."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.got: list[str] = []
        self.leases: dict[str, Lease] = {}

    def wait(self, name: str, client: str, size: int) -> None:
        def resume(lease: Lease) -> None:
            self.got.append(name)
            self.leases[name] = lease

        assert self.pool.lease(client, size) is None
        self.pool.wait(name, client, size, resume)


def leased(pool: Pool, client: str, size: int) -> Lease:
    lease = pool.lease(client, size)
    assert lease is not None
    return lease


def test_a_client_is_its_principal_or_its_address() -> None:
    assert client_of(Sender("10.0.0.1")) == "10.0.0.1"  # type: ignore[arg-type]
    assert client_of(Sender("10.0.0.1", ALICE)) == ALICE  # type: ignore[arg-type]


def test_a_client_with_leases_leaves_room_for_others() -> None:
    pool = pool_of(100)
    first = leased(pool, "a", 30)
    leased(pool, "a", 30)
    assert pool.lease("a", 30) is None, "it holds more than is free"
    other = leased(pool, "b", 30)
    assert pool.lease("c", 30) is None, "the pool is full"
    other.release()
    first.release()
    leased(pool, "a", 30)
    assert pool.clients == {"a": 60}
    assert pool.used == 60


def test_a_limit_of_clients_holds_but_one_alone_may_be_longer() -> None:
    pool = pool_of(100)
    pool.client_limit = 10
    lease = leased(pool, "a", 30)
    assert pool.lease("a", 1) is None
    lease.release()
    leased(pool, "a", 5)
    leased(pool, "a", 5)
    assert pool.lease("a", 1) is None


def test_one_lease_alone_may_be_longer_than_the_pool() -> None:
    pool = pool_of(100)
    lease = leased(pool, "a", 1_000)
    assert pool.lease("b", 1) is None
    lease.release()
    assert (pool.used, pool.clients) == (0, {})


def test_short_ones_of_a_client_pass_long_ones_and_new_ones_those_that_were_set_aside() -> None:
    pool = pool_of(1_000)
    full = leased(pool, "x", 1_000)
    waiters = Waiters(pool)
    for name, size in (("l1", 90), ("l2", 91), ("l3", 92), ("s1", 10), ("s2", 11)):
        waiters.wait(name, "a", size)
    for name in ("again1", "again2"):
        resume = partial(waiters.got.append, name)
        pool.wait(name, "a", 50, lambda _, resume=resume: resume(), was_set_aside=True)  # type: ignore[misc]
    full.release()
    assert waiters.got == ["l1", "s1", "again1", "l2", "s2", "again2", "l3"]


def test_those_that_wait_get_it_one_of_each_client_in_turn() -> None:
    pool = pool_of(100)
    full = leased(pool, "x", 100)
    waiters = Waiters(pool)
    for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
        waiters.wait(name, client, 10)
    assert pool.waiting == 5
    full.release()
    assert waiters.got == ["a1", "b1", "c1", "a2", "a3"]
    assert (pool.waiting, pool.used) == (0, 50)


def test_a_long_one_keeps_its_turn_and_newcomers_wait_behind_it() -> None:
    pool = pool_of(100)
    leases = [leased(pool, f"x{number}", 20) for number in range(5)]
    waiters = Waiters(pool)
    waiters.wait("long", "a", 60)
    leases[0].release()
    assert waiters.got == []
    waiters.wait("short", "b", 10)  # there would be room for it
    leases[1].release()
    leases[2].release()
    assert waiters.got == ["long"]
    leases[3].release()
    assert waiters.got == ["long", "short"]


def test_who_waits_for_its_own_share_delays_no_other_client() -> None:
    pool = pool_of(100)
    held = leased(pool, "a", 60)
    waiters = Waiters(pool)
    waiters.wait("own", "a", 10)
    other = leased(pool, "b", 30)
    assert not pool.is_waited_for("b")
    assert pool.is_waited_for("a")
    other.release()
    assert waiters.got == []
    held.release()
    assert waiters.got == ["own"]


def test_who_is_gone_leaves_its_turn() -> None:
    pool = pool_of(100)
    full = leased(pool, "x", 80)
    waiters = Waiters(pool)
    waiters.wait("long", "a", 90)
    waiters.wait("short", "b", 10)
    assert pool.forget("long", "a")
    assert waiters.got == ["short"], "nothing was released, but it fits"
    assert not pool.forget("long", "a")
    assert not pool.forget("short", "b")
    full.release()
    assert (pool.used, pool.waiting) == (10, 0)


def test_a_lower_limit_ends_no_lease_and_a_higher_one_wakes() -> None:
    pool = pool_of(100)
    leases = [leased(pool, str(number), 25) for number in range(4)]
    pool.limit = 50
    waiters = Waiters(pool)
    waiters.wait("a", "a", 10)
    leases[0].release()
    leases[1].release()
    assert (waiters.got, pool.used) == ([], 50)
    pool.limit = 60
    pool.offer()
    assert waiters.got == ["a"]


def test_a_lease_that_shrinks_makes_room() -> None:
    pool = pool_of(100)
    lease = leased(pool, "a", 100)
    waiters = Waiters(pool)
    waiters.wait("b", "b", 40)
    lease.resize(60)
    assert waiters.got == ["b"]
    lease.release()
    assert pool.clients == {"b": 40}


def test_many_that_wait_get_it_in_several_iterations_of_the_loop() -> None:
    pool = pool_of(1_000)
    later: list[Any] = []
    pool.defer = later.append
    full = leased(pool, "x", 1_000)
    waiters = Waiters(pool)
    for number in range(2 * GRANTS_AT_ONCE + 1):
        waiters.wait(str(number), str(number), 1)
    full.release()
    assert len(waiters.got) == GRANTS_AT_ONCE
    while later:
        later.pop(0)()
    assert len(waiters.got) == 2 * GRANTS_AT_ONCE + 1
    assert waiters.got == [str(number) for number in range(2 * GRANTS_AT_ONCE + 1)]


def test_one_that_releases_at_once_does_not_overtake() -> None:
    pool = pool_of(10)
    full = leased(pool, "x", 10)
    order: list[str] = []

    def resume(name: str) -> Any:
        def at_once(lease: Lease) -> None:
            order.append(name)
            lease.release()

        return at_once

    for name in "abc":
        pool.wait(name, name, 10, resume(name))
    full.release()
    assert order == ["a", "b", "c"]
    assert (pool.used, pool.waiting) == (0, 0)


async def test_a_task_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    pool = pool_of(10)
    full = leased(pool, "x", 10)
    tasks = [spawn(pool.leased("a", 10), name="waits") for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert pool.waiting == 1
    full.release()
    tasks[1].cancel()  # in the same iteration: the lease is there, and not taken yet
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (pool.used, pool.waiting) == (0, 0)


# requests and responses ------------------------------------------------------------------------


def budget() -> MemoryBudget:
    memory = MemoryBudget()
    memory.limit(16 * MIB, 8 * MIB, 16 * MIB)
    return memory


def admit(memory: MemoryBudget, sender: Sender, size: int, **more: Any) -> Any:
    more.setdefault("of_broker", False)
    more.setdefault("resume", lambda lease: None)
    return memory.admit(sender, size, **more)  # type: ignore[arg-type]


async def test_a_broker_that_stops_leaves_no_task_that_waits() -> None:
    pool = pool_of(10)
    leased(pool, "x", 10)
    task = spawn(pool.leased("a", 10), name="waits")
    await asyncio.sleep(0)
    assert pool.waiting == 1
    pool.clear()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert (pool.waiting, pool.used) == (0, 10)


def test_brokers_have_a_reserve_that_clients_do_not_get() -> None:
    memory = budget()
    assert memory.request_limit == 16 * MIB
    for number in range(30):
        admit(memory, Sender(f"10.0.0.{number}"), MIB)
    assert memory.large.waiting > 10
    broker, client = Sender("10.1.0.2"), Sender("10.1.0.3")
    assert admit(memory, client, MIB) is None
    assert admit(memory, broker, MIB, of_broker=True) is not None
    assert admit(memory, client, 10_000) is not None, "small requests pass"


def test_without_limits_everybody_gets_everything() -> None:
    memory = MemoryBudget()
    assert memory.request_limit == 0
    for _ in range(10):
        assert admit(memory, Sender(), 100 * MIB) is not None


class Scene:
    """A budget of 10 MiB for large requests, and connections that receive some."""

    def __init__(self) -> None:
        self.memory = budget()
        self.memory.large.limit = 10 * MIB
        self.now = 0.0
        self.resumed: list[Sender] = []
        self.closed: list[Sender] = []

    def begin(self, host: str, size: int = MIB, sender: Sender | None = None) -> Sender:
        """A connection has the first bytes of a request."""
        sender = Sender(host) if sender is None else sender
        sender.memory = self.memory

        def resume(lease: Lease) -> None:
            self.memory.received[sender] = lease  # type: ignore[index]
            self.resumed.append(sender)

        lease = admit(self.memory, sender, size, resume=resume)
        if lease is not None:
            self.memory.received[sender] = lease  # type: ignore[index]
        return sender

    def look(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for connection, _ in self.memory.relieve(self.now):
            self.memory.forget(connection)
            self.memory.aside.pop(connection).release()
            self.closed.append(connection)  # type: ignore[arg-type]

    def complete(self, sender: Sender) -> None:
        """All of a request has come, and it is handled."""
        self.memory.received.pop(sender).release()  # type: ignore[call-overload]

    def is_aside(self, *senders: Sender) -> list[bool]:
        return [sender in self.memory.aside for sender in senders]


def test_the_silent_ones_are_set_aside_only_while_others_wait() -> None:
    scene = Scene()
    silent = [scene.begin(f"10.0.0.{number}") for number in range(10)]
    for _ in range(3):
        scene.look()
    assert not scene.memory.aside, "nobody waits"
    waiting = scene.begin("10.1.0.1")
    scene.look()
    assert not scene.memory.aside, "the time begins now"
    silent[0].receive(LEAST_PROGRESS_BYTES)
    silent[1].receive(1)
    scene.look()
    assert scene.resumed == [waiting]
    assert scene.is_aside(*silent[:3]) == [False, False, True], "one was enough"
    assert scene.memory.large.used == 10 * MIB
    assert scene.closed == []


def test_of_those_that_send_slow_ones_are_set_aside_as_long_as_it_costs_little() -> None:
    scene = Scene()
    senders = [scene.begin(f"10.0.0.{number}") for number in range(10)]
    for number in range(10):
        scene.begin(f"10.1.0.{number}")
    for sender in senders:
        sender.receive(600_000)
    scene.look()
    senders[0].receive((MIB - 600_000) // SOON_LOOKS)
    for sender in senders[1:]:
        sender.receive(8 * LEAST_PROGRESS_BYTES)
    scene.look()
    assert not scene.is_aside(senders[0])[0], "the rest comes soon"
    assert sum(scene.is_aside(*senders)) == 4, "of 10 MiB a quarter"
    for _ in range(20):
        for sender in senders[1:]:
            sender.receive(8 * LEAST_PROGRESS_BYTES)
        scene.look()
    assert sum(scene.is_aside(*senders[1:])) == 4
    assert scene.closed == []


def test_one_that_would_take_longer_than_a_minute_is_set_aside_whatever_it_costs() -> None:
    scene = Scene()
    senders = [scene.begin(f"10.0.0.{number}") for number in range(10)]
    scene.begin("10.1.0.1", 8 * MIB)
    for sender in senders:
        sender.receive(600_000)
    scene.look()
    for sender in senders:
        sender.receive(2 * LEAST_PROGRESS_BYTES)
    scene.look()
    assert all(scene.is_aside(*senders))


def test_a_request_that_was_set_aside_waits_for_the_rest_when_more_comes() -> None:
    scene = Scene()
    silent = [scene.begin(f"10.0.0.{number}") for number in range(10)]
    scene.begin("10.1.0.1")
    scene.look()
    scene.look()
    first = silent[0]
    assert scene.is_aside(first) == [True]
    leases: list[Lease] = []
    scene.memory.take_up(first, MIB, leases.append)  # type: ignore[arg-type]
    assert leases == []
    scene.look()
    assert [lease.size for lease in leases] == [MIB]
    scene.memory.go_on(first, leases[0])  # type: ignore[arg-type]
    assert scene.is_aside(first) == [False]
    assert scene.memory.received[first].size == MIB  # type: ignore[index]


def take_up(scene: Scene, sender: Sender, left: int, went_on: list[Sender]) -> None:
    def resume(lease: Lease) -> None:
        scene.memory.go_on(sender, lease)  # type: ignore[arg-type]
        went_on.append(sender)

    scene.memory.take_up(sender, left, resume)  # type: ignore[arg-type]


def test_who_has_sent_more_goes_on_even_if_such_requests_hold_all_of_the_memory() -> None:
    scene = Scene()
    silent = [scene.begin(f"10.0.0.{number}", 2 * MIB) for number in range(5)]
    for sender in silent:
        sender.receive(2 * MIB - 10_000)
    waiting = scene.begin("10.1.0.1", 4 * MIB)
    scene.look()
    scene.look()
    went_on: list[Sender] = []
    for sender in silent:
        take_up(scene, sender, 10_000, went_on)
    scene.look()
    assert went_on == silent[:1]
    scene.complete(silent[0])
    assert scene.resumed == []
    scene.look()
    assert went_on == silent[:2]
    scene.complete(silent[1])
    assert scene.resumed == [waiting]
    assert scene.closed == []


def test_one_request_that_was_set_aside_goes_on_although_it_is_more_than_half() -> None:
    scene = Scene()
    large = scene.begin("10.0.0.1", 8 * MIB)
    large.receive(6 * MIB)
    scene.begin("10.0.0.1")
    scene.look()
    scene.look()
    assert scene.is_aside(large) == [True]
    went_on: list[Sender] = []
    take_up(scene, large, 2 * MIB, went_on)
    scene.look()
    assert went_on == [large]


def test_requests_that_send_a_little_again_and_again_shut_nobody_out() -> None:
    scene = Scene()
    slow = [scene.begin(f"10.0.0.{number}", 2 * MIB) for number in range(5)]
    for sender in slow:
        sender.receive(2 * MIB - 500_000)
    waiting = scene.begin("10.1.0.1", 4 * MIB)
    for _ in range(60):
        scene.look()
        for sender in slow:
            lease = scene.memory.aside.get(sender)  # type: ignore[call-overload]
            if lease is None or not lease.has_more:
                sender.receive(1)
            if lease is not None and not lease.has_more:
                take_up(scene, sender, 2 * MIB - sender.filled_bytes, [])
    assert scene.resumed == [waiting]
    assert len(scene.closed) < len(slow)


def test_silent_ones_are_closed_before_those_that_wait_to_go_on() -> None:
    scene = Scene()
    waits, silent = (scene.begin(f"10.0.0.{number}", 5 * MIB) for number in range(2))
    for sender in (waits, silent):
        sender.receive(5 * MIB - 10_000)
    waiting = scene.begin("10.1.0.1", 4 * MIB)
    scene.look()
    silent.receive(LEAST_PROGRESS_BYTES)
    scene.look()
    scene.look()
    assert all(scene.is_aside(waits, silent))
    scene.memory.aside[waits].has_passed = True  # type: ignore[index]
    take_up(scene, waits, 10_000, [])
    scene.look()
    while not scene.closed:
        scene.look(2.0)  # the first one at which either may be closed
    assert scene.closed == [silent]
    assert scene.resumed == [waiting]


def test_short_ones_do_not_overtake_a_long_one_of_their_client_for_ever() -> None:
    pool = pool_of(1_000)
    pool.client_limit = 100
    first = leased(pool, "a", 50)
    waiters = Waiters(pool)
    waiters.wait("long", "a", 80)
    assert pool.lease("a", 10) is None, "it waits behind the long one"
    waiters.wait("short", "a", 10)
    leased(pool, "b", 10).release()
    first.release()
    assert waiters.got == ["long", "short"]


def test_what_was_received_is_given_up_only_if_nothing_else_helps() -> None:
    scene = Scene()
    silent = [scene.begin(f"10.0.0.{number}", 2 * MIB) for number in range(5)]
    for sender in silent:
        sender.receive(2 * MIB - 10_000)
    waiting = scene.begin("10.1.0.1")
    scene.look()
    while scene.now < SILENCE_SECONDS:
        silent[0].receive(LEAST_PROGRESS_BYTES)
        scene.look()
    assert scene.closed == scene.resumed == []
    scene.look(LONGEST_LOOK_SECONDS + 100.0)
    assert scene.resumed == [waiting]
    assert scene.closed[0] is not silent[0]
    assert len(scene.closed) == 1, "as many as are needed"


def test_a_process_that_stood_still_does_not_take_its_clients_for_silent() -> None:
    scene = Scene()
    for number in range(5):
        scene.begin(f"10.0.0.{number}", 2 * MIB).receive(2 * MIB - 10_000)
    scene.begin("10.1.0.1")
    scene.look()
    scene.look(1_000.0)
    assert scene.closed == []


def fast(scene: Scene, host: str, size: int = MIB) -> Sender:
    """A connection of which more than the first bytes has come."""
    sender = Sender(host)
    sender.is_fast = True
    return scene.begin(host, size, sender)


def test_a_request_that_arrives_fast_passes_slow_ones_of_its_address() -> None:
    scene = Scene()
    slow = [scene.begin("10.0.0.1") for _ in range(60)]
    received = list(scene.memory.received)
    for _ in range(20):  # they hold the memory for a minute, at their rate
        for each in received:
            each.receive(20_000)  # type: ignore[attr-defined]
        scene.look()
        first = fast(scene, "10.0.0.1")
        second = fast(scene, "10.0.0.1")
        assert first in scene.memory.received
        assert second in scene.memory.received
        scene.complete(first)
        scene.complete(second)
    assert scene.memory.quick.used == 0
    assert not scene.closed
    assert any(sender not in scene.resumed for sender in slow)


def test_a_request_of_which_more_comes_while_it_waits_passes_too() -> None:
    scene = Scene()
    for _ in range(20):
        scene.begin("10.0.0.1")
    waiting = scene.memory.large.waiting
    late = scene.begin("10.0.0.1")
    granted: list[Lease] = []
    scene.memory.hasten(late, MIB, granted.append)  # type: ignore[arg-type]
    assert (granted, scene.memory.large.waiting) == ([], waiting + 1)
    late.is_fast = True
    scene.memory.hasten(late, MIB, granted.append)  # type: ignore[arg-type]
    assert [lease.pool for lease in granted] == [scene.memory.quick]
    assert scene.memory.large.waiting == waiting
    scene.memory.hasten(late, MIB, granted.append)  # type: ignore[arg-type]
    assert len(granted) == 1, "it waits no more"


def test_fast_ones_wait_for_each_other_and_clients_take_turns() -> None:
    scene = Scene()
    for _ in range(20):
        scene.begin("10.0.0.1")
    held = [fast(scene, "10.0.0.1") for _ in range(10)]
    assert scene.memory.quick.used <= scene.memory.quick.limit == 4 * MIB
    other = fast(scene, "10.0.0.2")
    assert other in scene.memory.received
    scene.complete(held[0])
    assert scene.resumed == [held[3]] or scene.resumed == [held[2]]


def test_one_that_turns_out_to_be_slow_leaves_the_memory_of_quick_ones() -> None:
    scene = Scene()
    senders = [scene.begin("10.0.0.1") for _ in range(20)]
    fakes = [fast(scene, "10.0.0.1") for _ in range(10)]
    for _ in range(30):
        for each in list(scene.memory.received):
            each.receive(20_000)  # type: ignore[attr-defined]
        scene.look()
    used = scene.memory.request_bytes
    assert used <= scene.memory.large.limit + scene.memory.quick.limit
    assert {True, False} == set(scene.is_aside(*senders, *fakes))
    honest = fast(scene, "10.0.0.2")
    for _ in range(3):
        scene.look()
    assert honest in scene.memory.received


def test_the_limit_of_a_client_holds_for_both_pools() -> None:
    scene = Scene()
    memory = scene.memory
    memory.large.client_limit = memory.quick.client_limit = 3 * MIB
    others = [scene.begin(f"10.1.0.{number}") for number in range(10)]
    first, *_ = [fast(scene, "10.0.0.1") for _ in range(5)]
    assert memory.quick.used == 3 * MIB
    for other in others:
        scene.complete(other)
    assert (memory.large.used, memory.quick.used) == (0, 3 * MIB)
    slow = scene.begin("10.0.0.1")
    assert slow not in memory.received
    for _ in range(3):
        scene.complete(first)
        (first, *_) = (each for each in memory.received)  # type: ignore[assignment]
        assert memory.large.used + memory.quick.used == 3 * MIB
    assert slow in memory.received


def test_fast_ones_use_what_is_free_first_of_both_pools() -> None:
    """Quick memory may be held for long: by requests that wait for followers, say."""
    scene = Scene()
    slow = [scene.begin(f"10.1.0.{number}") for number in range(10)]
    quick = [fast(scene, f"10.2.0.{number}") for number in range(4)]
    first, second = fast(scene, "10.0.0.1"), fast(scene, "10.0.0.2")
    assert scene.resumed == []
    scene.complete(slow[0])
    scene.complete(quick[0])
    assert scene.resumed == [first, second]
    memory = scene.memory
    assert (memory.large.waiting, memory.quick.waiting) == (0, 0)
    assert (memory.large.used, memory.quick.used) == (10 * MIB, 4 * MIB)


def test_announced_bytes_that_do_not_come_delay_no_fast_ones() -> None:
    scene = Scene()
    for number in range(10):
        scene.begin(f"10.1.0.{number}")
    for number in range(4):
        fast(scene, f"10.2.0.{number}").receive(1 << 20)  # handled, for a long time
    waiting = fast(scene, "10.0.0.1")
    scene.look()
    scene.look()
    assert scene.resumed == [waiting]


@pytest.mark.parametrize("client_limit", [UNLIMITED, 1 * MIB])
def test_a_request_longer_than_the_pool_goes_on_after_it_was_set_aside(client_limit: int) -> None:
    """The limits shrink while the broker needs more memory itself."""
    scene = Scene()
    memory = scene.memory
    memory.large.limit = 2 * MIB
    memory.large.client_limit = client_limit
    longer = scene.begin("10.0.0.1", 3 * MIB)
    longer.receive(MIB // 2)
    other = scene.begin("10.0.0.2")
    for _ in range(3):
        scene.look()
    assert scene.resumed == [other]
    scene.complete(other)
    resumed: list[Lease] = []

    def resume(rest: Lease) -> None:
        resumed.append(rest)
        memory.go_on(longer, rest)  # type: ignore[arg-type]

    memory.take_up(longer, 3 * MIB - MIB // 2, resume)  # type: ignore[arg-type]
    last = scene.begin("10.0.0.1", 3 * MIB)
    scene.look()
    assert len(resumed) == 1
    scene.complete(longer)
    assert scene.resumed == [other, last]
    assert not scene.closed


def test_both_pools_together_take_no_more_than_their_memory() -> None:
    scene = Scene()
    memory = scene.memory
    for number in range(10):
        scene.begin(f"10.1.0.{number}")
    longer = fast(scene, "10.0.0.1", memory.quick.limit + 1)
    assert longer not in memory.received
    assert memory.quick.used + memory.large.used <= memory.quick.limit + memory.large.limit
    short = fast(scene, "10.0.0.2")
    assert short in memory.received, "the longer one does not wait here"


def test_a_client_that_waits_for_its_share_does_not_have_others_set_aside() -> None:
    scene = Scene()
    own, other = scene.begin("10.0.0.1", 6 * MIB), scene.begin("10.0.0.2")
    waiting = scene.begin("10.0.0.1")
    scene.look()
    scene.look()
    assert scene.is_aside(own, other) == [True, False]
    assert scene.resumed == [waiting]


class Context:
    """A request whose response may be long."""

    def __init__(self, sender: Sender, api_key: int, size: int) -> None:
        self.connection = sender
        self.header = SimpleNamespace(api_key=api_key)
        self.route = SimpleNamespace(response_bytes=size)


def context(sender: Sender, api_key: int = ApiKey.DESCRIBE_CONFIGS, size: int = 0) -> Any:
    return Context(sender, api_key, size)


def test_long_responses_are_built_one_after_the_other_in_little_memory() -> None:
    memory = budget()
    resumed: list[Lease] = []
    leases = [
        memory.begin_response(context(Sender(f"10.0.0.{number}")), resumed.append)
        for number in range(5)
    ]
    assert [lease is not None for lease in leases] == [True, True, False, False, False]
    assert leases[0] is not None
    leases[0].release()
    assert len(resumed) == 1


def test_metadata_passes_while_others_build() -> None:
    memory = budget()
    assert memory.begin_response(context(Sender()), print) is not None
    for number in range(8):
        asking = context(Sender(f"10.0.1.{number}"), ApiKey.METADATA)
        assert memory.begin_response(asking, print) is not None


@pytest.mark.parametrize("size", [0, 100 * MIB])
def test_a_response_that_is_longer_than_the_pool_is_built_beside_unread_ones(size: int) -> None:
    memory = budget()
    memory.limit(16 * MIB, 2 * MIB, 16 * MIB)
    memory.set_unread(Sender("10.0.0.9"), 100_000)  # type: ignore[arg-type]
    assert memory.begin_response(context(Sender(), size=size), print) is not None


def test_responses_that_are_not_read_are_counted_until_they_are() -> None:
    memory = budget()
    reader, other = Sender("10.0.0.1"), Sender("10.0.0.2")
    memory.set_unread(reader, 5 * MIB)  # type: ignore[arg-type]
    resumed: list[Lease] = []
    assert memory.begin_response(context(other), resumed.append) is None
    unread = memory.unread_lease(reader)  # type: ignore[arg-type]
    assert unread is not None
    reader.leases = [unread]
    reader.unacknowledged_bytes = MIB
    for second in range(int(STALL_SECONDS)):
        assert list(memory.relieve(float(second))) == []
    reader.unacknowledged_bytes -= LEAST_PROGRESS_BYTES
    for second in range(5, 5 + int(STALL_SECONDS)):
        assert list(memory.relieve(float(second))) == [], "it has read something"
    assert list(memory.relieve(5 + STALL_SECONDS)) == [(reader, memory.responses)]
    memory.set_unread(reader, -1)  # type: ignore[arg-type]
    assert len(resumed) == 1
    resumed[0].release()
    assert memory.used == 0
