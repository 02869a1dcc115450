"""Hosts on this machine: each has a network namespace, and the runner routes between them.

The runner starts itself again in a network and a mount namespace of its own (`enter`), so that
addresses, routes and mounts end with it and nothing outside sees them. Packets from one host to
another go through the runner. A blackhole rule between two hosts drops them without a word, as a
broken switch does; neither end sees a connection end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_INSIDE = "OTTLA_SYSTEM_NAMESPACE"
_NAMES = Path("/run/netns")
# Each host has a network of its own: 10.77.NUMBER.0/24, with the runner as .1 and the host as .2.
_NETWORK = "10.77"


def enter(module: str) -> str | None:
    """Runs `python -m module` again with the same arguments inside the namespaces and exits with
    its exit code. Returns None inside them, or why there can be none."""
    if os.environ.get(_INSIDE):
        return None
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    wrapped = ["unshare", "--net", "--mount"]
    if os.geteuid() != 0:
        wrapped += ["--user", "--map-root-user"]
    if subprocess.run([*wrapped, "true"], capture_output=True).returncode:
        return "this user cannot create network namespaces"
    command = [*wrapped, sys.executable, "-m", module, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env={**os.environ, _INSIDE: "1"}).returncode)


def run(*command: str) -> None:
    """One command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Hosts:
    """The hosts by name, and the ways between them that are cut."""

    def __init__(self, names: Iterable[str]) -> None:
        # A file system of this mount namespace, so that the names of hosts vanish with it.
        _NAMES.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "none", str(_NAMES))
        run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._cut: list[tuple[str, str]] = []
        for name, number in self._numbers.items():
            self._add(name, number)

    def _add(self, name: str, number: int) -> None:
        runner = f"{_NETWORK}.{number}.1"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"h{number}", "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "address", "add", f"{runner}/24", "dev", f"h{number}")
        run("ip", "link", "set", f"h{number}", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "default", "via", runner)

    def address(self, name: str) -> str:
        """The address of a host, which the runner and the other hosts reach."""
        return f"{_NETWORK}.{self._numbers[name]}.2"

    def on(self, name: str) -> tuple[str, ...]:
        """What stands before a command so that it runs on a host."""
        return ("nsenter", f"--net={_NAMES / name}")

    def cut(self, name: str, others: Iterable[str]) -> None:
        """Drops packets between a host and the others, both ways; connections stay open."""
        for other in others:
            for way in ((name, other), (other, name)):
                self._rule("add", way)
                self._cut.append(way)

    def heal(self) -> None:
        """Packets pass again."""
        while self._cut:
            self._rule("del", self._cut.pop())

    def _rule(self, verb: str, way: tuple[str, str]) -> None:
        source, target = map(self.address, way)
        run("ip", "rule", verb, "from", source, "to", target, "blackhole", "priority", "100")
