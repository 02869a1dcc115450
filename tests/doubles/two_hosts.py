"""Hosts on one link of this machine, each with a name, an address and a /tmp of its own.

A host is a process in network, mount and UTS namespaces that other commands enter. The link is
created between the namespaces, so the machine's own network has nothing of it, and everything ends
with the processes. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

_SETUP = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
case "$3" in /tmp/*) mkdir -p "$2$3"; mount --bind "$3" "$2$3" ;; esac
mount --rbind "$2/tmp" /tmp
echo ready
exec sleep infinity
"""


class Host:
    """One host. `tmp` is its /tmp as this process sees it."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self.address = address
        self.tmp = directory / "tmp"
        self.tmp.mkdir(parents=True)
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    @property
    def full_name(self) -> str:
        """As its /etc/hosts has it."""
        return f"{self.name}.example"

    def boot(self, hosts: str) -> None:
        """Start it; `hosts` is its /etc/hosts."""
        (self._directory / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        command = ["unshare", "--net", "--uts", "--mount", "--propagation", "private"]
        self._process = subprocess.Popen(
            [*command, "sh", "-c", _SETUP, "sh", self.name, self._directory, REPOSITORY],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{self.name} did not start"

    @property
    def pid(self) -> str:
        """Of the process that holds its namespaces."""
        assert self._process is not None
        return str(self._process.pid)

    @property
    def prefix(self) -> list[str]:
        """What stands before a command so that it runs there, in /tmp."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount"]
        return [*enter, "sh", "-c", 'cd /tmp && exec "$@"', "sh"]

    def run(self, *command: str, text_input: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command there; its output and its exit code."""
        return subprocess.run(
            [*self.prefix, *command],
            input=text_input,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def shut_down(self) -> None:
        """End the process that holds the namespaces."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def two_hosts(directory: Path) -> Iterator[tuple[Host, Host]]:
    """The hosts kafka-1 and kafka-2, which reach each other by name. Skips the test without root
    or the tools for namespaces."""
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if not shutil.which(name)]
    if missing:
        pytest.skip(f"network namespaces need {', '.join(missing)}")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("network namespaces need root")
    hosts = [Host(f"kafka-{n}", f"10.78.0.{n}", directory / f"kafka-{n}") for n in (1, 2)]
    first, second = hosts
    lines = "".join(f"{each.address} {each.full_name} {each.name}\n" for each in hosts)
    try:
        for host in hosts:
            host.boot(lines)
        link = ["ip", "link", "add", "eth0", "netns", first.pid, "type", "veth"]
        subprocess.run([*link, "peer", "name", "eth0", "netns", second.pid], check=True)
        for host in hosts:
            for step in (
                f"address add {host.address}/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
            ):
                done = host.run("ip", *step.split())
                assert done.returncode == 0, done.stderr
        yield first, second
    finally:
        for host in hosts:
            host.shut_down()
