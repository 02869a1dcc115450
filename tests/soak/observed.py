"""A server process that the abuse tests observe from outside: by its metrics and as a process."""

import socket
import urllib.request
from collections.abc import Sequence

import psutil


class ObservedServer:
    """Where to reach it, and its figures. `metrics` are its Prometheus samples."""

    def __init__(self, pid: int, port: int, http_port: int, deadline_s: float) -> None:
        self.process = psutil.Process(pid)
        self.port = port
        self.deadline_s = deadline_s
        self._url = f"http://127.0.0.1:{http_port}/metrics"

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(self._url, timeout=self.deadline_s) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def left(self) -> dict[str, float]:
        """What must be the same after a round of abuse as before it."""
        metrics = self.metrics()
        return {
            "connections": metrics['ottla_connections_open{listener="PLAINTEXT"}'],
            "queued requests": metrics["ottla_request_queue_size"],
            "bytes in progress": metrics["ottla_request_memory_bytes"],
        }

    def connect(self, receive_buffer_bytes: int = 0) -> socket.socket:
        """A connection whose every call has a deadline."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(self.deadline_s)
        sock.connect(("127.0.0.1", self.port))
        return sock


def halves(memory: Sequence[int]) -> tuple[int, int]:
    """Of each half of the rounds the least: what allocators keep of a round varies."""
    middle = len(memory) // 2
    return min(memory[:middle]), min(memory[middle:])


def summary(server: ObservedServer, memory: Sequence[int]) -> str:
    """What is printed of a run: numbers to look at, which no test asserts."""
    metrics = server.metrics()
    first, second = halves(memory)
    stalls = {name: value for name, value in metrics.items() if "stalls_total{" in name}
    return (
        f"{metrics['ottla_connections_accepted_total']:.0f} connections; "
        f"memory {first / 1e6:.1f} MB, then {second / 1e6:.1f} MB; stalls {stalls}, longest "
        f"{metrics['ottla_loop_longest_stall_seconds'] * 1000:.0f} ms, of computing "
        f"{metrics['ottla_loop_computing_stalls_total']:.0f}"
    )
