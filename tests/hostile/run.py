"""Attacks a broker at length, with requests of every API and version: `make hostile`.

    python -m tests.hostile.run [--seconds 600] [--elements 20000] [--seed 1] [--api Metadata]

A client without any right sends requests in random order; an honest producer and `/readyz` are
watched beside it. The broker fails when it ends, when its loop computes for more than 50 ms in one
turn, when its memory grows by more than 64 MB for a request, or when the 99th percentile of the
honest producer is more than five times what it is without the attack. Times depend on the machine:
nothing else should run on it.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
import urllib.request
from pathlib import Path

from ottla.protocol.registry import API
from tests.doubles.apache_kafka import free_port
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.sasl_talk import addresses, sasl_listener
from tests.hostile.honest import TOPIC, Watcher, percentile
from tests.hostile.malicious_requests import Shape, shapes
from tests.hostile.raw_client import ask

MOST_GROWTH_BYTES = 64 << 20
MOST_TIMES_SLOWER = 5.0
QUIET_SECONDS = 10.0
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


def computing_stalls(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = re.search(r"^ottla_loop_computing_stalls(?:_total)? (\S+)", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


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

    def __init__(self, broker: BrokerProcess, url: str, elements: int) -> None:
        self.broker = broker
        self.url = url
        self.elements = elements
        self.failures: list[str] = []
        self.sent = 0
        self.worst_growth = 0

    def send(self, shape: Shape, port: int, *, where: str) -> None:
        pid = self.broker.pid
        reset_peak(pid)
        before = peak_bytes(pid)
        stalls = computing_stalls(self.url)
        length = ask(port, shape.frame)
        self.sent += 1
        growth = peak_bytes(pid) - before
        self.worst_growth = max(self.worst_growth, growth)
        line = f"{where} {shape.api} {shape.version} {shape.name}, {len(shape.frame)} bytes"
        if growth > MOST_GROWTH_BYTES:
            self.failures.append(f"{line}: memory grew by {growth >> 20} MB (response {length})")
        more = computing_stalls(self.url) - stalls
        if more:
            self.failures.append(f"{line}: {more} turns of more than 50 ms")


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
    http_port = free_port()
    settings = sasl_listener() | {
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:anna",
        "offsets_topic_num_partitions": "1",
        "ottla_metrics_address": f"127.0.0.1:{http_port}",
    }
    broker = BrokerProcess(
        directory, {name.replace("_", "."): text for name, text in settings.items()}
    )
    broker.start()
    try:
        open_port, sasl_port = (int(each.rpartition(":")[2]) for each in addresses(broker))
        url = f"http://127.0.0.1:{http_port}"
        config = {
            "bootstrap.servers": f"127.0.0.1:{sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "anna",
            "sasl.password": "s3cret",
            "linger.ms": "0",
            "acks": "1",
        }
        ready_url = f"{url}/readyz"
        quiet_watcher = Watcher(config, ready_url)
        time.sleep(QUIET_SECONDS)
        quiet, _ = quiet_watcher.finish()
        run = Attack(broker, url, options.elements)
        watcher = Watcher(config, ready_url)
        rng = random.Random(options.seed)
        deadline = time.monotonic() + options.seconds
        for key, version in requests(rng, options.elements, options.api):
            for shape in shapes(API[key], version, options.elements):
                run.send(shape, open_port, where="without rights:")
            for shape in shapes(API[key], version, min(options.elements, 5000)):
                run.send(shape, sasl_port, where="before authentication:")
            if time.monotonic() > deadline:
                break
        attacked, ready = watcher.finish()
        return report(run, quiet, attacked, ready)
    finally:
        if broker.is_running:
            broker.kill()


def report(run: Attack, quiet: list[float], attacked: list[float], ready: list[float]) -> int:
    before, during = percentile(quiet[1:], 0.99), percentile(attacked[1:], 0.99)
    print(f"{run.sent} requests; most growth of memory {run.worst_growth >> 20} MB")
    print(
        f"honest producer of {TOPIC}: {len(attacked)} records, 99th percentile "
        f"{during * 1000:.1f} ms, without the attack {before * 1000:.1f} ms"
    )
    print(f"/readyz: {len(ready)} checks, slowest {max(ready) * 1000:.1f} ms")
    if during > MOST_TIMES_SLOWER * max(before, LEAST_PERCENTILE_SECONDS):
        run.failures.append("the honest producer waits more than five times as long")
    for line in run.failures:
        print(f"FAILED {line}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
