"""Attacks a broker at length, with requests of every API and version: `make hostile`.

    python -m tests.hostile.run [--seconds 600] [--elements 20000] [--seed 1] [--api Metadata]

A client without any right sends requests in random order to one of two brokers; then forty
connections send some at once. Watched beside them are an honest producer whose records the other
broker copies, `/readyz`, the in-sync replicas, and the brokers' sessions of ZooKeeper. The broker
fails when it ends, when its loop computes for more than 50 ms in one turn, when its memory grows by
more than 64 MB for a request, when the follower leaves the in-sync replicas, when a session ends or
reconnects, or when the 99th percentile of the
honest producer is more than five times what it is without the attack. Times depend on the machine:
nothing else should run on it.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path

from ottla.broker.requests.request_parts import ORDINARY
from ottla.protocol.registry import API, ApiKey
from tests.hostile.attackers import Attackers
from tests.hostile.cluster import LEADER, TOPIC, HostileCluster, Observation, hostile_cluster
from tests.hostile.honest import Watcher, percentile
from tests.hostile.malicious_requests import Shape, shapes
from tests.hostile.raw_client import ask

MOST_GROWTH_BYTES = 64 << 20
MOST_TIMES_SLOWER = 5.0
QUIET_SECONDS = 10.0
# That send long requests at the same time.
CONNECTIONS = 40
# What a scheduler of a busy machine adds is not the broker's.
LEAST_PERCENTILE_SECONDS = 0.004


def peak_bytes(pid: int) -> int:
    """The most memory of the process since `reset_peak`."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", text)
    assert found is not None
    return int(found[1]) << 10


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def requests(rng: random.Random, elements: int, only: str) -> list[tuple[int, int]]:
    found = [
        (key, version)
        for key, api in API.items()
        if not only or api.name == only
        for version in range(api.min_version, api.max_version + 1)
    ]
    rng.shuffle(found)
    return found


class Attack:
    """One run; `failures` has a line for each broken promise."""

    def __init__(self, cluster: HostileCluster) -> None:
        self.cluster = cluster
        self.failures: list[str] = []
        self.sent = 0
        self.worst_growth = 0

    def send(self, shape: Shape, port: int, *, where: str) -> None:
        pid = self.cluster.brokers[LEADER].pid
        reset_peak(pid)
        before = peak_bytes(pid)
        stalls = self.cluster.metric("ottla_loop_computing_stalls")
        length = ask(port, shape.frame)
        self.sent += 1
        growth = peak_bytes(pid) - before
        self.worst_growth = max(self.worst_growth, growth)
        line = f"{where} {shape.api} {shape.version} {shape.name}, {len(shape.frame)} bytes"
        if growth > MOST_GROWTH_BYTES:
            self.failures.append(f"{line}: memory grew by {growth >> 20} MB (response {length})")
        more = self.cluster.metric("ottla_loop_computing_stalls") - stalls
        if more:
            self.failures.append(f"{line}: {more} turns of more than 50 ms")

    def compare(self, before: Observation, what: str) -> None:
        """What follower and ZooKeeper saw of the requests so far."""
        found = self.cluster.observe()
        for name, old, new in zip(Observation._fields, before, found, strict=True):
            if old != new:
                self.failures.append(f"{what}: {name} was {old}, is {new}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--elements", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return attack(Path(directory), options)


def attack(directory: Path, options: argparse.Namespace) -> int:
    with hostile_cluster(directory) as cluster:
        config = cluster.config | {"linger.ms": "0", "acks": "all"}
        ready_url = f"{cluster.urls[LEADER]}/readyz"
        quiet_watcher = Watcher(config, ready_url)
        time.sleep(QUIET_SECONDS)
        quiet, _ = quiet_watcher.finish()
        run = Attack(cluster)
        before = cluster.observe()
        watcher = Watcher(config, ready_url)
        rng = random.Random(options.seed)
        deadline = time.monotonic() + options.seconds
        for key, version in requests(rng, options.elements, options.api):
            for shape in shapes(API[key], version, options.elements):
                run.send(shape, cluster.open_port, where="without rights:")
            for shape in shapes(API[key], version, min(options.elements, 5000)):
                run.send(shape, cluster.sasl_port, where="before authentication:")
            run.compare(before, f"after {API[key].name} {version}")
            if time.monotonic() > deadline:
                break
        attacked, ready = watcher.finish()
        report(run, "one request at a time", quiet, attacked, ready)
        watcher = Watcher(config, ready_url)
        for shape in crowd_shapes():
            with Attackers(cluster.open_port, shape.frame, ["127.0.0.1"] * CONNECTIONS):
                time.sleep(QUIET_SECONDS)
        attacked, ready = watcher.finish()
        report(run, f"{CONNECTIONS} connections", quiet, attacked, ready)
        run.compare(before, f"after {CONNECTIONS} connections")
    for line in run.failures:
        print(f"FAILED {line}")
    return 1 if run.failures else 0


def crowd_shapes() -> list[Shape]:
    """The dearest requests among those that are handled in one turn, and among those that are
    handled with the small ones."""
    chosen = (ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_ACLS, ApiKey.ALTER_CONFIGS)
    return [
        next(
            shape
            for shape in shapes(API[key], API[key].max_version, elements - 10)
            if shape.name.endswith(" distinct")
        )
        for key in chosen
        for elements in (ORDINARY.inline, ORDINARY.small)
    ]


def report(
    run: Attack, what: str, quiet: list[float], attacked: list[float], ready: list[float]
) -> None:
    before, during = percentile(quiet[1:], 0.99), percentile(attacked[1:], 0.99)
    print(f"{what}: {run.sent} requests; most growth of memory {run.worst_growth >> 20} MB")
    print(
        f"honest producer of {TOPIC}: {len(attacked)} records, 99th percentile "
        f"{during * 1000:.1f} ms, without the attack {before * 1000:.1f} ms"
    )
    print(f"/readyz: {len(ready)} checks, slowest {max(ready) * 1000:.1f} ms")
    if during > MOST_TIMES_SLOWER * max(before, LEAST_PERCENTILE_SECONDS):
        run.failures.append(f"{what}: the honest producer waits more than five times as long")


if __name__ == "__main__":
    raise SystemExit(main())
