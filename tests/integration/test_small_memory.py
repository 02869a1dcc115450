"""Loads that need many times the memory of the broker, in a container of 128 MiB.

Each load is quiet: it sends a part of its requests, or reads none of its responses. The broker must
outlive it, serve another client meanwhile, and give the memory back.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import wire
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest
from tests.doubles.broker_process import ROOT, BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.memory_group import MemoryGroup, memory_group, peak_bytes, resident_bytes

LIMIT = 128 << 20
# Honest clients wait at most until those that hold the memory are found not to make progress
# (5 s), and for a machine that has other things to do.
PATIENCE_SECONDS = 15.0
TOPICS = 40


@pytest.fixture(scope="module")
def group() -> Iterator[MemoryGroup]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with memory_group(LIMIT) as found:
        yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def broker(group: MemoryGroup, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {name.replace("_", "."): text for name, text in group.settings.items()}
    process = BrokerProcess(tmp_path, settings)
    process.prefix = group.prefix
    process.start()
    try:
        yield process
        assert not process.has_ended(), process.log()
        assert peak_bytes(process.pid) < LIMIT
        assert "Traceback" not in process.log()
        assert process.stop() == 0
    finally:
        if process.is_running:
            process.kill()


def create(broker: BrokerProcess, *names: str) -> None:
    topics = [CreatableTopic(name, 1, 1) for name in names]
    with wire.connect(broker.bootstrap) as sock:
        wire.call(sock, CreateTopicsRequest(topics, timeout_ms=30_000), 5)


@contextmanager
def many(broker: BrokerProcess, addresses: int, each: int) -> Iterator[list[socket.socket]]:
    """Connections of several addresses, which take little of what they do not read."""
    found = []
    try:
        for number in range(addresses):
            for _ in range(each):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.bind((f"127.0.0.{number + 2}", 0))
                sock.connect(("127.0.0.1", broker.port))
                sock.setblocking(False)
                found.append(sock)
        yield found
    finally:
        for sock in found:
            sock.close()


def send_parts(socks: list[socket.socket], content: bytes, seconds: float) -> int:
    """Send on all sockets at once what is taken of `content`; returns how many broke."""
    sent = dict.fromkeys(socks, 0)
    broken = 0
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_WRITE)
        deadline = time.monotonic() + seconds
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    sent[sock] += sock.send(content[sent[sock] : sent[sock] + 65536])
                except OSError:
                    broken += 1
                    sent[sock] = len(content)
                if sent[sock] >= len(content):
                    selector.unregister(sock)
    return broken


def serve_another(broker: BrokerProcess, topic: str) -> float:
    """Another client writes and asks; returns how long the slowest of its requests took."""
    slowest = 0.0
    with wire.connect(broker.bootstrap) as sock:
        sock.settimeout(PATIENCE_SECONDS)
        for _ in range(5):
            for request, version in (
                (MetadataRequest(topics=None), 9),
                (wire.produce_request(topic, 0, wire.records(10, 100)), wire.PRODUCE_VERSION),
                (wire.produce_request(topic, 0, wire.records(20, 1_000)), wire.PRODUCE_VERSION),
            ):
                began = time.monotonic()
                wire.call(sock, request, version)
                slowest = max(slowest, time.monotonic() - began)
    return slowest


def returns_memory(broker: BrokerProcess, before: int) -> None:
    eventually(
        lambda: resident_bytes(broker.pid) < before + (24 << 20),
        lambda: f"{resident_bytes(broker.pid) >> 20} MiB, before {before >> 20}",
        seconds=30.0,
    )


def test_producers_that_sent_a_part_of_a_long_request(broker: BrokerProcess) -> None:
    create(broker, "t", "other")
    before = resident_bytes(broker.pid)
    frame = wire.produce_frame("t", 0, wire.records(900, 1_000))
    with many(broker, 60, 10) as socks:
        assert send_parts(socks, frame[:-1_000], 3.0) == 0, "who waits is not closed"
        assert serve_another(broker, "other") < 1.0, "small requests pass"
    returns_memory(broker, before)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_old_consumers_that_do_not_read(broker: BrokerProcess, codec: str) -> None:
    create(broker, "t", "other")
    with wire.connect(broker.bootstrap) as sock:
        for _ in range(60):
            batch = records_of(900, 1_000, codec)
            wire.call(sock, wire.produce_request("t", 0, batch), wire.PRODUCE_VERSION)
    before = resident_bytes(broker.pid)
    row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 << 20)
    fetch = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic("t", partitions=[row])])
    with many(broker, 60, 1) as socks:
        for sock in socks:
            sock.send(encode_request(1, "old", fetch, 2))
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            assert serve_another(broker, "other") < PATIENCE_SECONDS
        # One of them begins to read: it gets a whole response, in pieces.
        reader = socks[0]
        reader.settimeout(60.0)
        size = int.from_bytes(wire.receive_exactly(reader, 4), "big")
        assert len(wire.receive_exactly(reader, size)) == size
    returns_memory(broker, before)


def records_of(count: int, size: int, codec: str) -> bytes:
    from ottla.protocol.records.builder import build_batch

    rows = [(0, None, os.urandom(size // 2) + bytes(size // 2), []) for _ in range(count)]
    return bytes(build_batch(rows, codec=("none", "gzip").index(codec)))


def test_long_responses_that_nobody_reads(broker: BrokerProcess) -> None:
    names = [f"t{number}" for number in range(TOPICS)]
    create(broker, "other", *names)
    before = resident_bytes(broker.pid)
    rows = [DescribeConfigsResource(2, name, None) for name in names]
    describe = encode_request(
        1, "reads nothing", DescribeConfigsRequest(rows, include_documentation=True), 4
    )
    with many(broker, 60, 8) as socks:
        for sock in socks:
            sock.send(describe * 10)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            assert serve_another(broker, "other") < PATIENCE_SECONDS
    returns_memory(broker, before)


def test_real_clients_find_nothing_wrong(broker: BrokerProcess) -> None:
    """Records, groups and transactions, with each client of the compatibility suite."""
    names = ("produce_consume", "groups", "transactions")
    files = [f"tests/compat/test_{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files],
        cwd=ROOT,
        env={**os.environ, "OTTLA_COMPAT_BOOTSTRAP": broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
