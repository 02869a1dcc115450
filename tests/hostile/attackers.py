"""Threads that send the same request on connections of their own, again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tests.hostile.raw_client import RawClient


class Attackers:
    """A connection for each of `hosts`, the addresses of the clients."""

    def __init__(self, port: int, frame: bytes, hosts: Sequence[str]) -> None:
        self.responses = 0
        self._port = port
        self._frame = frame
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._attack, args=(host,)) for host in hosts]

    def __enter__(self) -> Attackers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _attack(self, host: str) -> None:
        client = RawClient(self._port, host)
        while not self._is_over.is_set():
            client.send(self._frame)
            assert client.receive() > 0
            self.responses += 1
        client.close()
