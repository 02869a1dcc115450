"""The alert rules, their tests and the text of /metrics with promtool: `make check-alerts`.

Needs `promtool` on the PATH (Debian package prometheus). That each metric of the rules is served is
tested in CI, without it, by tests/integration/test_compose.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from confluent_kafka import Producer

from ottla.broker.testing.embedded import Broker

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
TESTS = Path(__file__).with_name("alerts_test.yml")
DEADLINE_S = 60.0


def metrics() -> bytes:
    """The text of a broker with some traffic."""
    with Broker(ottla_metrics_address="127.0.0.1:0") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"v")
        assert producer.flush(DEADLINE_S) == 0
        url = f"http://127.0.0.1:{broker.server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            text: bytes = response.read()
    return text


def main() -> None:
    """Exits with 1 after the first check that fails, with 2 without promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        sys.exit("promtool is not on the PATH: apt-get install prometheus")
    for arguments, text in (
        (["check", "config", str(RULES / "prometheus.yml")], None),
        (["test", "rules", str(TESTS)], None),
        (["check", "metrics"], metrics()),
    ):
        done = subprocess.run([promtool, *arguments], input=text, check=False, timeout=DEADLINE_S)
        print(f"promtool {' '.join(arguments)}: {'ok' if done.returncode == 0 else 'failed'}")
        if done.returncode:
            sys.exit(1)


if __name__ == "__main__":
    main()
