"""Hostile clients of a machine with two workers: each bounds what it takes, and a flood of one does
not reach the other."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.net.descriptors import LEAST_RESERVED
from ottla.protocol.registry import API, ApiKey
from tests.doubles.eventually import eventually
from tests.doubles.workers_process import WorkersProcess, start_workers
from tests.hostile.attackers import Attackers
from tests.hostile.malicious_requests import header
from tests.hostile.raw_client import SIZE
from tests.hostile.run import crowd_shapes
from tests.hostile.test_descriptors import connect_until_refused

SECONDS = 60.0
DESCRIPTORS = 256
TOPIC = "honest"
BUDGET = 4 << 20
FRAME = 1 << 20
HOLDERS = 12


def ports_of_workers(cluster: WorkersProcess) -> list[int]:
    """The own port of each worker, by its number; its partition of the topic has the same one."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assignment = [[1001], [1002]]
    [made] = admin.create_topics([NewTopic(TOPIC, 2, replica_assignment=assignment)]).values()
    made.result(SECONDS)
    brokers = admin.list_topics(timeout=SECONDS).brokers
    return [brokers[broker_id].port for broker_id in (1001, 1002)]


def produce(cluster: WorkersProcess, partition: int, count: int = 20) -> None:
    """Each record is acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    errors: list[object] = []
    for _ in range(count):
        producer.produce(
            TOPIC, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(SECONDS) == 0, cluster.log()
    assert errors == [None] * count


def values(cluster: WorkersProcess, name: str, worker: int) -> list[float]:
    """The samples of a metric of one worker."""
    found = re.findall(
        rf'^{name}{{worker="{worker}".*}} (\S+)$', cluster.get("/metrics")[1], re.MULTILINE
    )
    return [float(each) for each in found]


def test_connections_to_the_shared_port_leave_each_worker_its_descriptors(tmp_path: Path) -> None:
    with start_workers(tmp_path, max_descriptors=DESCRIPTORS) as cluster, ExitStack() as stack:
        ports_of_workers(cluster)
        for sock in connect_until_refused(cluster.port, 4 * DESCRIPTORS):
            stack.enter_context(sock)
        opened = [Path(f"/proc/{row['pid']}/fd") for row in cluster.workers()]
        eventually(
            lambda: all(
                DESCRIPTORS // 2 < len(list(each.iterdir())) <= DESCRIPTORS - LEAST_RESERVED
                for each in opened
            ),
            lambda: f"{[len(list(each.iterdir())) for each in opened]} of {DESCRIPTORS}",
            seconds=SECONDS,
        )
        for partition in (0, 1):
            produce(cluster, partition)
        assert [row["restarts"] for row in cluster.workers()] == [0, 0]
        assert "offline" not in cluster.log()


def test_a_flood_of_one_worker_is_no_work_of_the_other(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        ports = ports_of_workers(cluster)
        produce(cluster, 0)
        stalls = values(cluster, "ottla_loop_computing_stalls_total", 0)
        for shape in crowd_shapes():
            with Attackers(ports[1], shape.frame, ["127.0.0.1"] * 8) as attackers:
                produce(cluster, 0)
                eventually(lambda attackers=attackers: attackers.responses > 8, seconds=SECONDS)  # type: ignore[misc]
                produce(cluster, 1)
        assert values(cluster, "ottla_loop_computing_stalls_total", 0) == stalls
        assert cluster.get("/readyz")[0] == 200
        assert [row["restarts"] for row in cluster.workers()] == [0, 0]
        assert "Traceback" not in cluster.log()


def test_the_memory_of_requests_is_bounded_for_each_worker(tmp_path: Path) -> None:
    settings = {"queued_max_request_bytes": BUDGET, "socket_request_max_bytes": 2 * FRAME}
    with start_workers(tmp_path, **settings) as cluster:
        ports = ports_of_workers(cluster)
        with ExitStack() as stack:
            for sock in unfinished_requests(ports[1]):
                stack.enter_context(sock)
            waiting = "ottla_memory_pool_waiting"
            eventually(lambda: max(values(cluster, waiting, 1)) > 0, cluster.log, seconds=SECONDS)
            assert max(values(cluster, waiting, 0)) == 0
            assert max(values(cluster, "ottla_memory_pool_bytes", 0)) < FRAME
            produce(cluster, 0)
            produce(cluster, 1)  # requests of which nothing comes lose their memory
        assert cluster.get("/readyz")[0] == 200


def unfinished_requests(port: int) -> Iterator[socket.socket]:
    """Produce requests that lack their last bytes."""
    api = API[ApiKey.PRODUCE]
    begin = SIZE.pack(FRAME) + header(api, api.max_version) + bytes(FRAME - 1000)
    for _ in range(HOLDERS):
        sock = socket.create_connection(("127.0.0.1", port), SECONDS)
        sock.setblocking(False)
        with suppress(BlockingIOError):
            sock.send(begin)
        yield sock
