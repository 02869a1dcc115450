"""A member of a group in the znode tree while ZooKeeper is away, and when it comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.cli import zookeeper_tree
from ottla.cli.output import Failure
from ottla.cli.zookeeper_server import free_port
from ottla.cli.zookeeper_tree import KazooTree

ROOT = Path(__file__).resolve().parents[2]


class ZooKeeper:
    """`ottla zookeeper`, on the same port after each start."""

    def __init__(self, directory: Path) -> None:
        self._command = [sys.executable, "-m", "ottla.cli.main", "zookeeper"]
        self._command += [f"--port={free_port()}", f"--data-dir={directory}"]
        self.connect = f"127.0.0.1:{self._command[-2].partition('=')[2]}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ZooKeeper")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    started = ZooKeeper(tmp_path)
    yield started
    started.kill()


def test_a_request_ends(monkeypatch: pytest.MonkeyPatch, zookeeper: ZooKeeper) -> None:
    monkeypatch.setattr(zookeeper_tree, "REQUEST_TIMEOUT_SECONDS", 1.0, raising=False)
    tree = KazooTree(zookeeper.connect)
    tree.set("/a", b"1")
    zookeeper.kill()
    pool = ThreadPoolExecutor(1)
    request = pool.submit(tree.set, "/a", b"2")
    try:
        with pytest.raises(Failure, match="does not respond"):
            request.result(10)
    finally:
        tree.close()
        pool.shutdown()


def test_a_request_waits_for_a_restart(zookeeper: ZooKeeper) -> None:
    tree = KazooTree(zookeeper.connect)
    tree.set("/a", b"1")
    zookeeper.kill()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(tree.set, "/a", b"2")
        zookeeper.start()
        request.result(30)
        assert tree.get("/a") == b"2"
    tree.close()
