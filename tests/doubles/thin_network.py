"""Two hosts on this machine, joined by a thin line: rate, delay and loss of packets both ways.

Each host is a network namespace with a TUN device; a process of its own, `python -m
tests.doubles.thin_network`, carries the packets between them. So TCP sees what it sees on a slow
site: segments that come late, in bursts or not at all, and a queue that is full.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SERVER, SITE = "10.99.0.1", "10.99.0.2"

_ROOT = Path(__file__).resolve().parents[2]
_NAMES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000
_DEVICE = "t0"
_CAPABILITIES = 1 << 12 | 1 << 21  # CAP_NET_ADMIN, CAP_SYS_ADMIN
# A router at the end of a thin line queues so much, and drops what comes then.
_QUEUE_SECONDS = 0.5
_PACKET_BYTES = 65_536
_AT_ONCE = 64


class Line(NamedTuple):
    """What a packet meets: bits per second, seconds, and the part of packets that are lost."""

    rate: float
    delay: float
    loss: float


class ThinNetwork:
    """The two hosts."""

    def __init__(self, server: str, site: str) -> None:
        self._site = site
        #: Before a command that runs on the server's host.
        self.on_server = ("ip", "netns", "exec", server)

    def enter_site(self) -> None:
        """From now on the calling thread is on the site's host: its new sockets are."""
        enter(self._site)


def why_not() -> str | None:
    """Why this machine cannot have such hosts."""
    if not sys.platform.startswith("linux") or not Path("/dev/net/tun").exists():
        return "this system has no TUN devices"
    if shutil.which("ip") is None:
        return "network namespaces are made with the command ip"
    capabilities = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    if int(capabilities, 16) & _CAPABILITIES != _CAPABILITIES:
        return "network namespaces need root"
    return None


@contextmanager
def thin_network(line: Line) -> Iterator[ThinNetwork]:
    """Both hosts, until the end of the block; nothing outside sees them."""
    names = [f"ottla-{os.getpid()}-{end}" for end in ("server", "site")]
    carrier = None
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        values = [str(value) for value in (*names, line.rate, line.delay, line.loss)]
        carrier = subprocess.Popen(
            [sys.executable, "-m", "tests.doubles.thin_network", *values],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
        )
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == b"ready\n"
        for name, address in zip(names, (SERVER, SITE), strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", _DEVICE)
            _run("ip", "-n", name, "link", "set", _DEVICE, "up")
        yield ThinNetwork(*names)
    finally:
        if carrier is not None:
            carrier.kill()
            carrier.wait()
            assert carrier.stdout is not None
            carrier.stdout.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def enter(name: str) -> None:
    """Move the calling thread into a network namespace (`os.setns` is of Python 3.12)."""
    descriptor = os.open(_NAMES / name, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _open_device(name: str) -> int:
    enter(name)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def carry(names: list[str], line: Line) -> None:
    """Pass packets between the devices for ever."""
    devices = [_open_device(name) for name in names]
    others = dict(zip(devices, reversed(devices), strict=True))
    free_at = dict.fromkeys(devices, 0.0)  # when the line to a device can take the next packet
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    poll = select.poll()
    for device in devices:
        poll.register(device, select.POLLIN)
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, device, packet = heapq.heappop(due)
            try:
                os.write(device, packet)
            except OSError:  # its host is not up yet, or its queue is full
                continue
        wait = 1_000 if not due else max(int((due[0][0] - now) * 1_000), 0) + 1
        for source, _ in poll.poll(wait):
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(source, _PACKET_BYTES)
                except BlockingIOError:
                    break
                target, now = others[source], time.monotonic()
                begin = max(free_at[target], now)
                if begin - now > _QUEUE_SECONDS or random.random() < line.loss:
                    continue
                free_at[target] = begin + len(packet) * 8 / line.rate
                number += 1
                heapq.heappush(due, (free_at[target] + line.delay, number, target, packet))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs=2)
    for name in Line._fields:
        parser.add_argument(name, type=float)
    options = parser.parse_args()
    carry(options.names, Line(options.rate, options.delay, options.loss))


if __name__ == "__main__":
    main()
