"""`ottla start --workers`: several brokers of one machine, with real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.workers import (
    bootstrap_ports,
    worker_count,
    worker_endpoints,
    worker_settings,
)
from tests.doubles.broker_process import ROOT
from tests.doubles.eventually import eventually
from tests.doubles.workers_process import WorkersProcess, start_workers
from tests.doubles.zookeeper_process import start_zookeeper

SECONDS = 60.0


def create(cluster: WorkersProcess, topic: str, partitions: int, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    [made] = admin.create_topics([NewTopic(topic, partitions, replicas)]).values()
    made.result(30)


def produce(cluster: WorkersProcess, topic: str, values: range, **options: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **options})
    failures = []
    for value in values:
        producer.produce(
            topic,
            str(value).encode(),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert failures == []


def consume(cluster: WorkersProcess, topic: str, count: int, group: str = "readers") -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # After five seconds there would be nothing left for the commit below.
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []

    def poll() -> bool:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            found.append(int(message.value()))
        return len(found) >= count

    try:
        eventually(poll, lambda: f"{len(found)} of {count}\n{cluster.log()}", seconds=SECONDS)
        found += [int(message.value()) for message in consumer.consume(1000, 0.5)]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(found)


def leaders(cluster: WorkersProcess, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
    return {number: each.leader for number, each in partitions.items()}


def test_partitions_spread_and_a_killed_worker_returns(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 6)
        assert sorted(leaders(cluster, "orders").values()) == [1001] * 3 + [1002] * 3
        produce(cluster, "orders", range(1000))
        assert consume(cluster, "orders", 1000) == list(range(1000))

        dead = cluster.kill_worker(1)
        cluster.wait_for_log("worker 1 (broker 1002) serves clients")
        cluster.wait_until_ready()
        row = cluster.workers()[1]
        assert row["pid"] != dead
        assert row["restarts"] == 1
        assert "worker 1 (broker 1002) has ended by SIGKILL: starting it in 0.5 s" in cluster.log()

        produce(cluster, "orders", range(1000, 1500))
        assert consume(cluster, "orders", 500) == list(range(1000, 1500))
        assert consume(cluster, "orders", 1500, "others") == list(range(1500))

        # The first worker is the controller: another one is elected at once, not after a timeout.
        cluster.kill_worker(0)
        cluster.wait_for_log("1002 successfully elected as the controller", seconds=5)
        cluster.wait_for_log("worker 0 (broker 1001) serves clients")
        cluster.wait_until_ready()
        assert consume(cluster, "orders", 1500, "third") == list(range(1500))
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.log()


def test_transactions_over_workers(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 4)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "writer"})
        producer.init_transactions(SECONDS)
        for start, commits in ((0, True), (100, False), (200, True)):
            producer.begin_transaction()
            for value in range(start, start + 100):
                producer.produce("orders", str(value).encode(), partition=value % 4)
            if commits:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
        expected = [*range(100), *range(200, 300)]
        assert consume(cluster, "orders", 200) == expected


def test_replacement_keeps_replicated_topics_available(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 4, replicas=2)
        before = [row["pid"] for row in cluster.workers()]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        failures = []
        written = 0
        cluster.send_signal(signal.SIGHUP)
        while "all workers are replaced" not in cluster.log():
            producer.produce(
                "orders",
                str(written).encode(),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            written += 1
            producer.poll(0.005)
            assert written < 20_000, cluster.log()
        assert producer.flush(SECONDS) == 0
        assert failures == []
        after = [row["pid"] for row in cluster.workers()]
        assert not set(before) & set(after)
        assert consume(cluster, "orders", written) == list(range(written))


def test_the_data_of_one_broker_continues_in_the_first_worker(tmp_path: Path) -> None:
    with start_workers(tmp_path, 1) as alone:
        create(alone, "orders", 2)
        produce(alone, "orders", range(10))
        assert alone.stop() == 0
        alone.set_workers(2)
        assert leaders(alone, "orders") == {0: 1001, 1: 1001}
        assert consume(alone, "orders", 10) == list(range(10))


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 2)
        pids = [int(row["pid"]) for row in cluster.workers()]
        cluster.kill()
        eventually(
            lambda: not any(is_alive(pid) for pid in pids),
            cluster.log,
            seconds=SECONDS,
        )
        cluster.restart()
        # The controller elects the leaders of a broker a moment after it has registered.
        eventually(
            lambda: sorted(leaders(cluster, "orders").values()) == [1001, 1002],
            cluster.log,
            seconds=SECONDS,
        )


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_port_adds_up_and_names_the_workers(tmp_path: Path) -> None:
    with start_workers(tmp_path, ottla_console_enable="true") as cluster:
        create(cluster, "orders", 4)
        produce(cluster, "orders", range(400))
        assert cluster.get("/healthz") == (200, "ok\n")
        assert cluster.get("/readyz")[0] == 200
        text = cluster.get("/metrics")[1]
        for worker in (0, 1):
            assert f'ottla_worker_up{{worker="{worker}"}} 1.0' in text
            assert f'ottla_ready{{worker="{worker}"}} 1.0' in text
        assert text.count("# TYPE ottla_ready gauge") == 1
        added = cluster.get("/metrics/total")[1]
        controllers = [line for line in added.splitlines() if line.startswith("ottla_active_contr")]
        assert controllers[0].endswith(" 1.0")
        status, page = cluster.get("/console")
        assert status == 200
        assert "<html" in page
        overview = json.loads(cluster.get("/api/overview")[1])
        assert [(row["id"], row["worker"]) for row in overview["brokers"]] == [(1001, 0), (1002, 1)]
        assert len({row["machine"] for row in overview["brokers"]}) == 1
        # A name that is not this machine's, as in an attack by DNS rebinding.
        assert cluster.get("/metrics", Host="elsewhere.example")[0] == 403

        os.kill(cluster.workers()[1]["pid"], signal.SIGSTOP)
        eventually(lambda: cluster.get("/readyz")[0] == 503, seconds=SECONDS)
        assert "worker 1" in cluster.get("/readyz")[1]
        os.kill(cluster.workers()[1]["pid"], signal.SIGCONT)
        cluster.wait_until_ready()


def test_other_users_reach_neither_data_nor_sockets() -> None:
    before = os.umask(0)  # what the process allows does not decide
    try:
        # A path that is short enough for a socket.
        with TemporaryDirectory() as folder, start_workers(Path(folder)) as cluster:
            create(cluster, "orders", 2)
            data = cluster.data_directory
            modes = {
                name: oct((data / name).stat().st_mode & 0o777)
                for name in (".", "ottla-workers", "ottla-workers/1", "ottla-workers/run")
            }
            assert cluster.stop() == 0
            assert not (data / "ottla-workers" / "run").exists()
    finally:
        os.umask(before)
    assert modes == {
        ".": "0o750",
        "ottla-workers": "0o750",
        "ottla-workers/1": "0o750",
        "ottla-workers/run": "0o700",
    }


def test_every_worker_serves_the_bootstrap_port(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        os.kill(cluster.workers()[0]["pid"], signal.SIGKILL)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assert 1002 in admin.list_topics(timeout=20).brokers


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    harmless = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "OTTLA_"))}
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "start", *arguments],
        cwd=cwd,
        env={**harmless, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_starts_that_fail_say_why(tmp_path: Path) -> None:
    directory = f"--override=log.dirs={tmp_path / 'workers' / 'data'}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        any_port = "--override=listeners=PLAINTEXT://127.0.0.1:0"
        ports = f"--override=ottla.workers.ports={port}"
        found = run("--workers=2", directory, any_port, ports, cwd=tmp_path)
        assert found.returncode == 10
        assert f"127.0.0.1:{port}: another process uses that port" in found.stderr
        bootstrap = f"--override=ottla.workers.bootstrap.ports={port}"
        found = run("--workers=2", directory, any_port, bootstrap, cwd=tmp_path)
        assert found.returncode == 10
        assert "ottla.workers.bootstrap.ports" in found.stderr
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 2)
        found = run("--workers=2", directory, any_port, cwd=tmp_path)
        assert found.returncode == 11
        assert "worker 0 cannot have its directory" in found.stderr
        assert cluster.stop() == 0
    found = run("--workers=1", directory, any_port, cwd=tmp_path)
    assert found.returncode == 2
    assert "worker 1 has 1 partition(s), such as orders-" in found.stderr
    assert "ottla workers spread --workers 1" in found.stderr
    meta = tmp_path / "workers" / "data" / "ottla-workers" / "1" / "meta.properties"
    meta.write_text(meta.read_text().replace("broker.id=1002", "broker.id=1001"))
    found = run("--workers=2", directory, any_port, cwd=tmp_path)
    assert found.returncode == 20
    assert "ottla: worker 1: Broker id 1001 is already registered" in found.stderr
    assert "Traceback" not in found.stderr


def ottla(cluster: WorkersProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *arguments, "--bootstrap", cluster.bootstrap],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_partitions_move_to_new_workers_and_back(tmp_path: Path) -> None:
    with start_workers(tmp_path, 1) as cluster:
        create(cluster, "orders", 5)
        produce(cluster, "orders", range(500))
        assert cluster.stop() == 0
        cluster.set_workers(3)
        assert sorted(set(leaders(cluster, "orders").values())) == [1001]
        dry = ottla(cluster, "workers", "spread", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert sorted(set(leaders(cluster, "orders").values())) == [1001]
        done = ottla(cluster, "workers", "spread", "--throttle", "100000000")
        assert done.returncode == 0, done.stderr
        assert sorted(leaders(cluster, "orders").values()) == [1001, 1001, 1002, 1002, 1003]
        again = ottla(cluster, "workers", "spread")
        assert "Nothing to move" in again.stdout
        assert consume(cluster, "orders", 500) == list(range(500))

        listed = ottla(cluster, "workers", "list").stdout
        numbers, ids = zip(*(line.split()[1:3] for line in listed.splitlines()[1:]), strict=True)
        assert numbers == ("0", "1", "2")
        # Generated ids: the new workers ask for them at the same moment.
        assert sorted(ids) == ["1001", "1002", "1003"]
        doctor = ottla(cluster, "doctor", "--http", cluster.http)
        assert "state 1003" in doctor.stdout, doctor.stdout + doctor.stderr
        assert "is throttled" not in doctor.stdout

        back = ottla(cluster, "workers", "spread", "--workers", "1")
        assert back.returncode == 0, back.stderr
        assert sorted(set(leaders(cluster, "orders").values())) == [1001]
        cluster.wait_until_empty(1, 2)
        assert cluster.stop() == 0
        cluster.set_workers(1)
        assert consume(cluster, "orders", 500, "others") == list(range(500))


def test_the_compose_file_starts_workers(tmp_path: Path) -> None:
    """Its environment, with free ports instead of the published ones."""
    [service] = yaml.safe_load((ROOT / "docker-compose.workers.yml").read_text())[
        "services"
    ].values()
    variables = dict(service["environment"])
    config = BrokerConfig.load(environment={**variables, "OTTLA_WORKERS": "4"})
    assert worker_count(config) == 4
    published = {int(port) for text in service["ports"] for port in published_ports(text)}
    used = {each.port for number in range(4) for each in worker_endpoints(config, number)} | set(
        bootstrap_ports(config).values()
    )
    assert used == published - {9404}
    assert variables["OTTLA_WORKERS"] == "${OTTLA_WORKERS:-2}"
    for number in range(4):
        advertised = worker_settings(config, number).get("advertised.listeners", "localhost:9092")
        assert advertised.endswith(f"localhost:{9092 + number}")


def published_ports(text: str) -> list[int]:
    """`127.0.0.1:9092-9095:9092-9095` -> the ports of the container, which are the same outside."""
    _, outside, inside = text.rsplit(":", 2)
    assert outside == inside
    first, _, last = inside.partition("-")
    return list(range(int(first), int(last or first) + 1))


def test_a_worker_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    """Its directory cannot be used any more: each start fails."""
    with start_workers(tmp_path, ottla_workers_restart_limit=4) as cluster:
        create(cluster, "orders", 2)
        meta = cluster.data_directory / "ottla-workers" / "1" / "meta.properties"
        text = meta.read_text()
        meta.write_text(text.replace("cluster.id=", "cluster.id=other"))
        cluster.kill_worker(1)
        cluster.wait_for_log("4 times in", seconds=90)
        assert "belongs to the cluster other" in cluster.log()
        assert cluster.get("/healthz")[0] == 503
        assert "given up" in cluster.get("/readyz")[1]
        assert cluster.workers()[0]["phase"] == "running"
        # The cause is repaired.
        meta.write_text(text)
        cluster.send_signal(signal.SIGHUP)
        cluster.wait_for_log("all workers are replaced")
        cluster.wait_until_ready()
        assert cluster.stop() == 0


def test_a_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    """At any moment: the earlier ones have no worker yet, the later ones all of them."""
    for number in range(8):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ottla.broker", "--workers=2"),
                f"--override=log.dirs={tmp_path / 'data'}",
                "--override=listeners=PLAINTEXT://127.0.0.1:0",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        # The supervisor has its handlers when the first worker has a session of the tree.
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Established session" in line or "is ready" in line:
                break
        time.sleep(number * 0.05)
        process.send_signal(signal.SIGTERM)
        lines += process.stdout.readlines()
        process.stdout.close()
        assert process.wait(SECONDS) == 0, "".join(lines)
        assert "Traceback" not in "".join(lines)


def test_workers_end_with_the_process_that_forks_them(tmp_path: Path) -> None:
    with start_workers(tmp_path) as cluster:
        create(cluster, "orders", 2)
        pids = [int(row["pid"]) for row in cluster.workers()]
        [forks] = {parent_of(pid) for pid in pids}
        os.kill(forks, signal.SIGKILL)
        assert cluster.wait_for_end() == 1
        assert not any(is_alive(pid) for pid in pids)
        assert cluster.log().count("stopped cleanly; the next start has nothing to recover") == 2
        assert "Traceback" not in cluster.log()


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_machines_with_zookeeper(tmp_path: Path) -> None:
    """Two machines, by their racks, with two workers each: no replicas of a partition on one."""
    with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
        shared = {"zookeeper_connect": zookeeper.connect, "offsets_topic_replication_factor": 2}
        with (
            start_workers(tmp_path / "a", broker_id=10, broker_rack="a", **shared) as first,
            start_workers(tmp_path / "b", broker_id=20, broker_rack="b", **shared) as second,
        ):
            create(first, "orders", 8, replicas=2)
            admin = AdminClient({"bootstrap.servers": second.bootstrap})
            for each in (
                admin.list_topics("orders", timeout=20).topics["orders"].partitions.values()
            ):
                assert {number // 10 for number in each.replicas} == {1, 2}, each.replicas
            assert {each.leader for each in partitions_of(first, "orders")} == {10, 11, 20, 21}

            # Its session of ZooKeeper lives on, so the restart takes the registration over.
            first.kill_worker(1)
            first.wait_for_log("worker 1 (broker 11) serves clients")
            produce(second, "orders", range(100))
            assert consume(first, "orders", 100) == list(range(100))

            # Worker 1 of a third machine would have the id of the first worker of the second one.
            found = run(
                *("--workers=2", f"--override=log.dirs={tmp_path / 'c'}"),
                "--override=listeners=PLAINTEXT://127.0.0.1:0",
                f"--override=zookeeper.connect={zookeeper.connect}",
                "--override=broker.id=19",
                cwd=tmp_path,
            )
            assert found.returncode == 20
            assert "ottla: worker 1: Broker id 20 is already registered" in found.stderr
            # One machine after the other, as an upgrade does: the topic stays available.
            assert second.stop() == 0
            produce(first, "orders", range(100, 200), **{"enable.idempotence": True})
            assert consume(first, "orders", 200, "others") == list(range(200))


def partitions_of(cluster: WorkersProcess, topic: str) -> list[PartitionMetadata]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return list(admin.list_topics(topic, timeout=20).topics[topic].partitions.values())


def test_killed_workers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """An idempotent producer with acks=all, while each worker is killed in turn."""
    with start_workers(tmp_path, 3, min_insync_replicas=2) as cluster:
        create(cluster, "orders", 6, replicas=3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        failures = []
        written = 0

        def produce_until(deadline: float) -> None:
            nonlocal written
            while time.monotonic() < deadline:
                producer.produce(
                    "orders",
                    str(written).encode(),
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                written += 1
                producer.poll(0.005)

        for number in range(3):
            produce_until(time.monotonic() + 2)
            cluster.kill_worker(number)
            produce_until(time.monotonic() + 2)
            cluster.wait_until_ready()
        assert producer.flush(SECONDS) == 0
        assert failures == []
        assert consume(cluster, "orders", written) == list(range(written))
