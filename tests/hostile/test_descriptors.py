"""A client that opens all the connections it can does not take what logs and brokers need."""

from __future__ import annotations

import socket
from pathlib import Path

from confluent_kafka import Producer

from ottla.broker.net.descriptors import LEAST_RESERVED
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually

DESCRIPTORS = 256


def connect_until_refused(port: int, count: int) -> list[socket.socket]:
    """Connections that send nothing; fewer when the backlog is full."""
    found = []
    for _ in range(count):
        try:
            found.append(socket.create_connection(("127.0.0.1", port), 5.0))
        except OSError:
            break
    return found


def test_idle_connections_leave_descriptors_for_the_broker(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "1", "num.partitions": "5"}
    broker = BrokerProcess(tmp_path, settings)
    broker.max_descriptors = DESCRIPTORS
    broker.start()
    idle: list[socket.socket] = []
    try:
        honest = Producer({"bootstrap.servers": broker.bootstrap})
        honest.produce("before", b"x")
        assert honest.flush(60) == 0
        idle = connect_until_refused(broker.port, 2 * DESCRIPTORS)
        assert len(idle) > DESCRIPTORS
        # A socket that was accepted has one, or two, until it is closed again.
        opened = Path(f"/proc/{broker.pid}/fd")
        eventually(
            lambda: len(list(opened.iterdir())) <= DESCRIPTORS - LEAST_RESERVED,
            lambda: f"{len(list(opened.iterdir()))} of {DESCRIPTORS} descriptors are in use",
        )
        # A topic of 5 partitions needs descriptors for its logs, and the honest client has one.
        errors: list[object] = []
        honest.produce("during", b"x", on_delivery=lambda error, _: errors.append(error))
        assert honest.flush(60) == 0
        assert errors == [None]
        assert "offline" not in broker.log()
        # Unknown connections are closed for one that comes later.
        late = Producer({"bootstrap.servers": broker.bootstrap})
        late.produce("during", b"y", on_delivery=lambda error, _: errors.append(error))
        eventually(lambda: late.flush(1) == 0, "the late client got no place", seconds=60)
        assert errors == [None, None]
    finally:
        for sock in idle:
            sock.close()
        if broker.is_running:
            broker.kill()
