"""One simulated machine: a disk that stays, and the broker processes that run on it in turn."""

from __future__ import annotations

import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server import broker_server
from ottla.storage.directories.log_manager import LogManager
from tests.simulation.cluster.disk import Disk, ProcessDied, SimulatedFileSystem
from tests.simulation.cluster.loop import Process, current_process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

logger = logging.getLogger("simulation")

PORT = 9092
LOG_DIRECTORIES = ("/data1", "/data2")


class SimulatedLock:
    """The lock of a log directory; processes of one machine do not run side by side here."""

    def __init__(self, directory: str) -> None: ...

    def release(self) -> None: ...


class SimulatedWorkerPool:
    """Worker threads: the work is done in one piece on the virtual machine, after a while."""

    def __init__(self, **_: Any) -> None:
        self._closed = False
        self.accepted = 0

    async def run(self, function: Any, *arguments: Any) -> Any:
        import asyncio

        if self._closed:
            from ottla.broker.runtime.tasks import WorkerPoolClosed

            raise WorkerPoolClosed("closed")
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    async def close(self) -> None:
        self._closed = True


class RunningBroker:
    """What the substituted constructors need to know, by the process they run in."""

    by_process: dict[Process, RunningBroker]

    def __init__(self, node: Node, process: Process, files: SimulatedFileSystem) -> None:
        self.node = node
        self.process = process
        self.files = files


_running: dict[Process, RunningBroker] = {}


def current_broker() -> RunningBroker:
    """Whose code runs."""
    process = current_process()
    assert process is not None
    return _running[process]


def _log_manager(*arguments: Any, **named: Any) -> LogManager:
    return LogManager(*arguments, fs=current_broker().files, **named)


def _open_store(_: BrokerConfig) -> Any:
    running = current_broker()
    return running.node.ensemble.session(running.process)


def _passes(_: object) -> None: ...


def _in_turn(jobs: Any) -> None:
    for job in jobs:
        job()


def substitute(network: Any) -> None:
    """The operating system below the broker: files, sockets, threads, the ensemble."""
    import os

    from ottla.broker.net import server as network_server
    from ottla.broker.net import services
    from ottla.broker.net.descriptors import DescriptorReserve
    from ottla.broker.replication import deferred_validation, log_cleaner
    from ottla.broker.server import broker as assembly
    from ottla.broker.server import start_checks
    from ottla.storage.directories import log_directories

    broker_server.LogManager = _log_manager  # type: ignore[misc,assignment]
    broker_server.open_store = _open_store
    # They look at the ports and the directories of the real machine.
    broker_server.check_ports = _passes
    broker_server.check_rights = _passes
    start_checks.check_space = _passes
    broker_server.run_in_threads = _in_turn
    log_cleaner.WorkerPool = SimulatedWorkerPool  # type: ignore[misc,assignment]
    assembly.WorkerPool = SimulatedWorkerPool  # type: ignore[misc,assignment]
    deferred_validation.WorkerPool = SimulatedWorkerPool  # type: ignore[misc,assignment]
    log_directories.DirectoryLock = SimulatedLock  # type: ignore[misc,assignment]
    network_server.bind = network.bind
    # Simulated sockets have numbers of their own, above every limit.
    services.DescriptorReserve = partial(DescriptorReserve, 1 << 30)  # type: ignore[misc,assignment]
    os.sendfile = network.sendfile  # type: ignore[assignment]
    os.preadv = network.preadv


class Node:
    """A machine with broker.id `broker_id`."""

    def __init__(self, world: World, broker_id: int, settings: dict[str, str]) -> None:
        self.world = world
        self.broker_id = broker_id
        self.host = f"b{broker_id}"
        #: Of a machine: its workers share it.
        self.rack = f"rack{(broker_id - 1) // world.shape.workers + 1}"
        self.disk = Disk(Random(f"disk {broker_id} {world.seed}"), world.loop)
        self.settings = settings
        self.running: RunningBroker | None = None
        self.server: broker_server.BrokerServer | None = None
        self.ready = False
        self.starts = 0
        self.log_directories = LOG_DIRECTORIES
        #: The ZooKeeper of its processes: another one by an operator's mistake.
        self.ensemble = world.ensemble
        #: While a disk fails on purpose.
        self.may_lose_all_disks = False

    @property
    def is_up(self) -> bool:
        return self.running is not None and not self.running.process.dead

    @property
    def is_readable(self) -> bool:
        """Whether checks can read its logs: it is up, and has not just died within a call."""
        return self.is_up and self.running is not None and not self.running.files.unplugged

    def start(self) -> None:
        """A new process on what the disk has."""
        assert not self.is_up
        self.starts += 1
        process = Process(self.host)
        self.running = RunningBroker(self, process, self.disk.mount())
        _running[process] = self.running
        self.ready = False
        self._starting = self.world.loop.create_task(self._run(process), context=process.context)
        self._starting.add_done_callback(self._on_started)

    def _on_started(self, task: Any) -> None:
        if task.cancelled() or isinstance(task.exception(), ProcessDied):
            return
        if task.exception() is not None:
            self.world.complain(f"{self.host} ended: {task.exception()!r}")

    async def _run(self, process: Process) -> None:
        import asyncio

        while True:
            config = BrokerConfig(
                {
                    "broker.id": str(self.broker_id),
                    "zookeeper.connect": "simulated:2181",
                    "log.dirs": ",".join(LOG_DIRECTORIES),
                    "broker.rack": self.rack,
                    "listeners": f"PLAINTEXT://{self.host}:{PORT}",
                    **self.settings,
                }
            )
            server = broker_server.BrokerServer(
                config,
                partial(self.world.disks_failed, self, process),
                watches_stalls=False,  # it is a thread
            )
            try:
                await server.start()
            except Exception as error:
                # A supervisor starts it again, as systemd or a container engine does.
                self.world.note(f"{self.host} did not start: {type(error).__name__}: {error}")
                self.world.network.process_ended(process, power=False)
                await asyncio.sleep(1.0)
                continue
            self.server = server
            self.ready = process.is_serving = True
            self.world.note(f"{self.host} is ready")
            return

    async def stop(self) -> None:
        """A clean shutdown, with controlled shutdown; the process ends after it."""
        running, server = self.running, self.server
        assert running is not None
        if server is None or not self.ready:
            self.kill()
            return
        self.ready = running.process.is_serving = False
        task = self.world.loop.create_task(server.stop(), context=running.process.context)
        import asyncio

        while not task.done() and not running.process.dead:  # noqa: ASYNC110  # a dead task never ends
            await asyncio.sleep(0.05)
        self.kill()

    def kill(
        self, *, power: bool = False, loses_unsynced: bool = True, ends_session: bool = True
    ) -> None:
        """`kill -9`, or the machine loses power, maybe with what was not synced. Unless
        `ends_session`, its session of ZooKeeper lives on until the caller ends it."""
        running = self.running
        if running is None or running.process.dead:
            return
        running.process.kill()
        running.process.keep((self.server, running))
        running.files.unmount()
        self.world.network.process_ended(running.process, power=power)
        session = self.ensemble.session_of(running.process)
        if session is not None and ends_session:
            session.died(at_once=False)
        if power and loses_unsynced:
            self.disk.lose_power()
        self.server = None
        self.ready = False
