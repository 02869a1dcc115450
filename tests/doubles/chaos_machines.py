"""Two machines with two workers each and a ZooKeeper, and what befalls their processes."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ottla.broker.config.workers import BOOTSTRAP_PORT_ABOVE
from tests.doubles.chaos_cluster import SETTINGS
from tests.doubles.eventually import eventually
from tests.doubles.workers_process import WorkersProcess
from tests.doubles.zookeeper_process import start_zookeeper

WORKERS = 2
FIRST_IDS = (10, 20)
# Below the ports that the kernel gives to outgoing connections.
_PORTS = range(20_000, 32_000)
_READY_SECONDS = 120.0


class Worker(NamedTuple):
    """A broker; `machine` is the first broker id of its machine."""

    machine: int
    number: int
    port: int


class ChaosMachines:
    """`victims` are the brokers that cannot do their work now."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.victims: set[int] = set()
        self.machines: dict[int, WorkersProcess] = {}
        self.brokers: dict[int, Worker] = {}
        self._paused: set[int] = set()
        for first in FIRST_IDS:
            port = _free_ports()
            settings = {
                **SETTINGS,
                "broker.id": str(first),
                "broker.rack": f"machine-{first}",
                "zookeeper.connect": zookeeper,
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "ottla.metrics.address": "127.0.0.1:0",
            }
            arguments = [f"--workers={WORKERS}"]
            process = WorkersProcess(directory / f"machine-{first}", settings, arguments)
            process.port = port
            self.machines[first] = process
            for number in range(WORKERS):
                self.brokers[first + number] = Worker(first, number, port + number)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(f"127.0.0.1:{each.port}" for each in self.brokers.values())

    def workers_of(self, machine: int) -> list[int]:
        """Broker ids."""
        return [each for each, worker in self.brokers.items() if worker.machine == machine]

    # -- troubles -------------------------------------------------------------------------------

    def kill_worker(self, victim: int) -> None:
        """The supervisor starts it again."""
        worker = self.brokers[victim]
        self.victims.add(victim)
        self.machines[worker.machine].kill_worker(worker.number)

    def pause_worker(self, victim: int) -> None:
        """The process stands still and does not know it."""
        worker = self.brokers[victim]
        self.victims.add(victim)
        self._pause(int(self.machines[worker.machine].workers()[worker.number]["pid"]))

    def pause_supervisor(self, machine: int) -> None:
        """Its workers serve clients."""
        self._pause(self.machines[machine].pid)

    def kill_supervisor(self, machine: int) -> None:
        """Its workers stop."""
        self.victims.update(self.workers_of(machine))
        self.machines[machine].kill()

    def kill_machine(self, machine: int) -> None:
        """All processes at once, as when the kernel dies."""
        process = self.machines[machine]
        pids = [process.pid, *descendants(process.pid)]
        self.victims.update(self.workers_of(machine))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait_for_end()

    def replace(self, machine: int) -> None:
        """SIGHUP; returns when all workers are replaced."""
        process = self.machines[machine]
        done = process.log().count("all workers are replaced")
        process.send_signal(signal.SIGHUP)
        eventually(
            lambda: process.log().count("all workers are replaced") > done,
            process.log,
            seconds=_READY_SECONDS,
        )

    def _pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._paused.add(pid)

    # -- rest -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """All processes run."""
        for pid in self._paused:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused.clear()
        for process in self.machines.values():
            if not process.is_running:
                eventually(
                    lambda process=process: not is_locked(process.data_directory),  # type: ignore[misc]
                    f"workers of {process.data_directory} run without their supervisor",
                    seconds=_READY_SECONDS,
                )
                process.start()
        for process in self.machines.values():
            process.wait_until_ready()
        self.victims.clear()

    def logs_are_identical(self, topic: str, partitions: int) -> bool:
        """Whether all replicas hold the same bytes, whatever files they are in."""
        return all(
            len({_bytes(each) for each in self._replicas(f"{topic}-{index}")}) == 1
            for index in range(partitions)
        )

    def replica(self, topic: str, index: int) -> Path:
        """The directory of a replica."""
        return self._replicas(f"{topic}-{index}")[0]

    def _replicas(self, name: str) -> list[Path]:
        found = []
        for process in self.machines.values():
            found += process.data_directory.glob(name)
            found += process.data_directory.glob(f"ottla-workers/*/{name}")
        return found

    def story(self) -> str:
        """The ends of all logs, for diagnosis."""
        return "\n".join(
            f"--- {machine}\n{process.log()[-10000:]}" for machine, process in self.machines.items()
        )


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(each) for each in re.findall(r"\d+", text)]
    return children + [each for child in children for each in descendants(child)]


def is_locked(directory: Path) -> bool:
    """Whether a worker has one of the directories of a machine."""
    for lock in (directory / ".lock", *directory.glob("ottla-workers/*/.lock")):
        if not lock.exists():
            continue
        with lock.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def _bytes(replica: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(replica.glob("*.log")))


def _free_ports() -> int:
    """The first of the ports of a machine."""
    generator = random.Random(time.time_ns())
    while True:
        first = generator.choice(_PORTS)
        with ExitStack() as stack:
            try:
                for port in (*range(first, first + WORKERS), first + BOOTSTRAP_PORT_ABOVE):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first


@contextmanager
def start_chaos_machines(directory: Path) -> Iterator[ChaosMachines]:
    """All machines started; everything ended when the block ends."""
    with start_zookeeper(directory) as zookeeper:
        cluster = ChaosMachines(directory, zookeeper.connect)
        try:
            for process in cluster.machines.values():
                process.start()
            yield cluster
        finally:
            for machine, process in cluster.machines.items():
                if process.is_running:
                    cluster.kill_machine(machine)
