"""Many producers behind one address and a thin line: none of them is an attacker, or some are.

An address says little about who is behind it: a site, a proxy, a container engine's gateway. Who
sends slowly because the line is thin is not closed, and gets its turns.

The short form loses no packets, so that nobody is silent but those that mean to be.
OTTLA_SLOW_SITE=long makes it the long form of some minutes, over a line that does.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks import wire
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.thin_network import SERVER, Line, ThinNetwork, thin_network, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PORT = 29092
RECORDS = 900  # of 1,000 bytes
IS_LONG = os.environ.get("OTTLA_SLOW_SITE") == "long"
if IS_LONG:
    # 20 Mbit/s, 20 ms and one packet of 200: what 40 producers send takes 30 s of it at the least.
    LINE, PRODUCERS, REQUESTS, ATTACKERS = Line(20e6, 0.020, 0.005), 40, 2, 60
else:
    # All of it at once is twice what the broker has for long requests.
    LINE, PRODUCERS, REQUESTS, ATTACKERS = Line(100e6, 0.005, 0.0), 20, 1, 30
MEMORY_BYTES = 128 << 20
# What attackers take of it is included; without them half of it is enough on a busy machine.
DEADLINE_SECONDS = 180.0


class Producer:
    """Sends requests one after the other, as fast as its connection takes them."""

    def __init__(self, sock: socket.socket, frame: bytes) -> None:
        self.sock = sock
        self.frame = frame
        self.sent = 0
        self.acknowledged = 0
        self.failure = ""

    def step(self, selector: selectors.BaseSelector) -> None:
        """Send or receive once; unregisters itself when all is acknowledged, or failed."""
        try:
            if self.sent < len(self.frame):
                self.sent += self.sock.send(self.frame[self.sent : self.sent + 65_536])
                if self.sent < len(self.frame):
                    return
                selector.modify(self.sock, selectors.EVENT_READ, self)
            elif self.sock.recv(4_096):
                self.acknowledged += 1
                self.sent = 0
                selector.modify(self.sock, selectors.EVENT_WRITE, self)
            else:
                self.failure = "closed by the broker"
        except BlockingIOError:
            return
        except OSError as error:
            self.failure = str(error)
        if self.failure or self.acknowledged == REQUESTS:
            selector.unregister(self.sock)


class Site(threading.Thread):
    """The clients, in a thread that is on the site's host."""

    def __init__(self, network: ThinNetwork, attack: Callable[[Site], None] | None = None) -> None:
        super().__init__()
        self.network = network
        self.attack = attack
        self.producers: list[Producer] = []
        self.socks: list[socket.socket] = []
        self.attackers: dict[socket.socket, memoryview] = {}  # what they still send
        self.slowest_small = 0.0
        self.seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.network.enter_site()
            self._run()
        except BaseException as error:
            self.error = error
        finally:
            for sock in self.socks:
                sock.close()

    def connect(self) -> socket.socket:
        sock = wire.connect(f"{SERVER}:{PORT}")
        self.socks.append(sock)
        return sock

    def _run(self) -> None:
        asking = self.connect()
        wire.call(asking, CreateTopicsRequest([CreatableTopic("t", 4, 1)], timeout_ms=30_000), 5)
        if self.attack is not None:
            self.attack(self)
        batch = wire.records(RECORDS, 1_000)
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for number in range(PRODUCERS):
                sock = self.connect()
                sock.setblocking(False)
                producer = Producer(sock, wire.produce_frame("t", number % 4, batch))
                self.producers.append(producer)
                selector.register(sock, selectors.EVENT_WRITE, producer)
            while selector.get_map() and time.monotonic() - began < DEADLINE_SECONDS:
                for key, _ in selector.select(0.5):
                    key.data.step(selector)
                for sock, rest in list(self.attackers.items()):
                    with suppress(BlockingIOError):
                        self.attackers[sock] = rest[sock.send(rest[:65_536]) :]
                    if not self.attackers[sock]:
                        del self.attackers[sock]
        self.seconds = time.monotonic() - began

    def check(self, broker: BrokerProcess) -> None:
        """Every producer has got all of its acknowledgements."""
        self.join()
        if self.error is not None:
            raise self.error
        failures = [producer.failure for producer in self.producers if producer.failure]
        assert failures == [], broker.log()
        assert [producer.acknowledged for producer in self.producers] == [REQUESTS] * PRODUCERS


@pytest.fixture
def network() -> Iterator[ThinNetwork]:
    with thin_network(LINE) as found:
        yield found


def started(network: ThinNetwork, directory: Path, **settings: str) -> BrokerProcess:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    listeners = {"listeners": f"PLAINTEXT://{SERVER}:{PORT}", "message.max.bytes": "2000000"}
    broker = BrokerProcess(directory, {**listeners, **named})
    broker.prefix = network.on_server
    broker.start()
    return broker


@pytest.mark.parametrize("memory", [-1, MEMORY_BYTES] if IS_LONG else [MEMORY_BYTES])
def test_honest_producers_behind_one_address(
    network: ThinNetwork, tmp_path: Path, memory: int
) -> None:
    broker = started(network, tmp_path, ottla_memory_max_bytes=str(memory))
    try:
        site = Site(network)
        site.start()
        site.check(broker)
        assert "closing the connection" not in broker.log()
    finally:
        broker.kill()


# Of their requests those that hold much send more than the pool of their client can keep.
HELD_BYTES = 500_000


def announce(site: Site) -> None:
    """Connections that announce long requests, send the beginning of them, and then nothing."""
    frame = wire.produce_frame("t", 0, wire.records(RECORDS, 1_000))
    for _ in range(ATTACKERS):
        site.connect().sendall(frame[:5_000])


def hold(site: Site) -> None:
    """Connections that send more than half of long requests, and then nothing."""
    frame = wire.produce_frame("t", 0, wire.records(RECORDS, 1_000))
    for _ in range(ATTACKERS // 3):
        sock = site.connect()
        sock.setblocking(False)
        site.attackers[sock] = memoryview(frame)[:HELD_BYTES]


@pytest.mark.parametrize("attack", [announce, hold])
def test_attackers_behind_the_same_address_stop_nobody(
    network: ThinNetwork, tmp_path: Path, attack: Callable[[Site], None]
) -> None:
    broker = started(network, tmp_path, ottla_memory_max_bytes=str(MEMORY_BYTES))
    try:
        site = Site(network, attack)
        site.start()
        site.check(broker)
        lines = [line for line in broker.log().splitlines() if "makes no progress" in line]
        assert len(lines) <= 1 + site.seconds // 60, "one line for an address and minute"
        assert attack is hold or not lines, "what is announced takes no memory"
    finally:
        broker.kill()
