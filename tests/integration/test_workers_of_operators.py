"""`ottla start --workers` in the hands of operators: signals at odd moments, ports and cores that
are short, one disk that is full, renewed keys."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.doubles.certificates import Certificates
from tests.doubles.chaos_machines import descendants
from tests.doubles.eventually import eventually
from tests.doubles.workers_process import WorkersProcess, start_workers
from tests.integration.test_workers import consume, create, is_alive, leaders, produce, run

SECONDS = 60.0


def test_a_metrics_port_in_use_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run(
            *("--workers=2", f"--override=log.dirs={tmp_path / 'data'}"),
            "--override=listeners=PLAINTEXT://127.0.0.1:0",
            f"--override=ottla.metrics.address=127.0.0.1:{port}",
            cwd=tmp_path,
        )
    assert found.returncode == 10
    assert f"127.0.0.1:{port}" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_signal_of_a_whole_group_twice_is_one_clean_stop(tmp_path: Path) -> None:
    """As systemd's control group and an impatient operator send it."""
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 4)
        produce(cluster, "orders", range(100))
        pids = descendants(cluster.pid)
        assert len(pids) == 3
        for _ in range(2):
            for pid in (cluster.pid, *pids):
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        assert cluster.wait_for_end() == 0
        assert not any(is_alive(pid) for pid in pids)
        assert cluster.log().count("stopped cleanly; the next start has nothing to recover") == 2
        assert "Traceback" not in cluster.log()
        cluster.restart()
        assert consume(cluster, "orders", 100) == list(range(100))


def test_a_supervisor_that_was_killed_leaves_no_port_behind(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        ports = [port for row in cluster.workers() for port in listening(int(row["pid"]))]
        pids = descendants(cluster.pid)
        assert len(set(ports)) >= 3  # one for each, and the shared one
        cluster.kill()
        eventually(lambda: not any(is_alive(pid) for pid in pids), cluster.log, seconds=SECONDS)
        for port in ports:
            socket.create_server(("127.0.0.1", port)).close()


def listening(pid: int) -> list[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(each)
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in sockets
    ]


def test_a_reload_while_a_worker_starts(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 4, replicas=2)
        for number in (1, 0):
            done = cluster.log().count("all workers are replaced")
            cluster.kill_worker(number)
            cluster.send_signal(signal.SIGHUP)
            cluster.send_signal(signal.SIGHUP)
            eventually(
                lambda done=done: cluster.log().count("all workers are replaced") > done,  # type: ignore[misc]
                cluster.log,
                seconds=SECONDS,
            )
            cluster.wait_until_ready()
        produce(cluster, "orders", range(100))
        assert consume(cluster, "orders", 100) == list(range(100))
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.log()


def test_more_workers_than_cores_are_pinned_in_turn(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    try:
        os.sched_setaffinity(0, {core})  # the started process has it, too
        with start_workers(tmp_path, 3, ottla_workers_pin="true") as cluster:
            rows = cluster.workers()
            assert [row["core"] for row in rows] == [core] * 3
            assert {frozenset(os.sched_getaffinity(row["pid"])) for row in rows} == {
                frozenset({core})
            }
            assert "ottla.workers is 3, and this process may use 1 core(s)" in cluster.log()
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_disk_of_one_worker_is_full(tmp_path: Path) -> None:
    """The other one takes records, and the machine says which one does not."""
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 2)
        led = leaders(cluster, "orders")
        [full] = [partition for partition, broker in led.items() if broker == 1002]
        set_least_free_bytes(cluster, 1 << 60)
        eventually(
            lambda: "worker 1 (broker 1002)" in cluster.get("/readyz")[1],
            cluster.log,
            seconds=SECONDS,
        )
        assert "worker 0" not in cluster.get("/readyz")[1]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "retry.backoff.ms": 50})
        delivered: list[int] = []
        for partition in led:
            producer.produce(
                "orders",
                b"1",
                partition=partition,
                on_delivery=lambda _, message: delivered.append(message.partition()),
            )
        eventually(lambda: producer.poll(0.1) >= 0 and len(delivered) == 1, seconds=SECONDS)
        assert delivered == [1 - full]
        set_least_free_bytes(cluster, 0)
        assert producer.flush(SECONDS) == 0
        cluster.wait_until_ready()


def set_least_free_bytes(cluster: WorkersProcess, count: int) -> None:
    """Of worker 1."""
    entry = ConfigEntry(
        "ottla.log.dir.min.free.bytes",
        str(count),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1002", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    [future] = admin.incremental_alter_configs([resource]).values()
    future.result(SECONDS)


def test_a_renewed_key_reaches_every_worker(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with start_workers(
        tmp_path,
        listeners="SSL://127.0.0.1:0",
        security_inter_broker_protocol="SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_type="PEM",
        ssl_truststore_location=certificates.authority_path,
    ) as cluster:
        ports = [port for row in cluster.workers() for port in listening(int(row["pid"]))]
        before = {port: shown(certificates, port) for port in ports}
        assert len(set(before.values())) == 1
        certificates.issue("server")
        eventually(
            lambda: not {shown(certificates, port) for port in ports} & set(before.values()),
            cluster.log,
            seconds=SECONDS,
        )
        # The one that was replaced has it, too.
        cluster.kill_worker(1)
        cluster.wait_for_log("worker 1 (broker 1002) serves clients")
        assert len({shown(certificates, port) for port in ports}) == 1


def shown(certificates: Certificates, port: int) -> bytes | None:
    """The certificate of a listener."""
    context = certificates.client_context()
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_a_stopped_supervisor_is_well_when_it_continues(tmp_path: Path) -> None:
    """Neither its workers nor their sessions of the tree are lost, nor does it report so."""
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 2)
        os.kill(cluster.pid, signal.SIGSTOP)
        time.sleep(12)  # longer than a worker may be silent, and than two ticks of the tree
        produce(cluster, "orders", range(10))
        os.kill(cluster.pid, signal.SIGCONT)
        status, text = cluster.get("/readyz")
        assert (status, "has not reported" in text) == (200, False), text
        eventually(lambda: cluster.get("/readyz") == (200, "ok\n"), cluster.log, seconds=SECONDS)
        assert consume(cluster, "orders", 10) == list(range(10))
        assert [row["restarts"] for row in cluster.workers()] == [0, 0]
        assert "Expiring session" not in cluster.log()
