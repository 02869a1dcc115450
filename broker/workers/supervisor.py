"""The supervisor of the workers of a machine: `ottla start --workers N`.

    ottla start ──fork── fork server ──fork── worker 0, worker 1, ...
        └ event loop: znode tree, control socket, HTTP port, signals

A worker is an ordinary broker: it registers, is elected, replicates and serves its own partitions,
so no request crosses a process. The supervisor starts the workers, starts them again when they end,
stops and replaces them in order, and serves what a machine has once: the znode tree where there is
no ZooKeeper, by ZooKeeper's protocol on a Unix socket, and the HTTP port. When a process ends, its
session of the tree is ended at once, so that its partitions get other leaders before any timeout.

`preparation.py` has what comes before the first fork, `fork_server.py` why a process of its own
forks, and `worker.py` the messages on the control socket.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.config.exit_codes import EXIT_CODES, FAILED, STOPPED, exit_code
from ottla.broker.config.workers import WorkerPlace
from ottla.broker.observability.banner import announce_workers
from ottla.broker.runtime.tasks import spawn, stop
from ottla.broker.server.process import is_expected, run_process
from ottla.broker.workers.fork_server import start_fork_server
from ottla.broker.workers.preparation import Prepared, preload, prepare
from ottla.broker.workers.worker import MAX_MESSAGE_BYTES, run_worker
from ottla.broker.workers.workers_http import WorkersHttp
from ottla.controller.tree.store import StoreError
from ottla.controller.zookeeper_server.server import ZooKeeperServer

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.observability.logs import LineFormatter
    from ottla.broker.security.sasl.scram_admin import NewUser

logger = logging.getLogger("ottla.workers")

# A worker that ends is started again after this long, twice as long after each further end.
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
# After ottla.workers.restart.limit ends within this time a worker is given up: what ends it does
# not go away.
ENDS_WITHIN_SECONDS = 300.0

# Reasons that go away by themselves: ZooKeeper is away, or has a session that will expire.
TRANSIENT = frozenset(
    EXIT_CODES[name] for name in ("ZooKeeperUnreachable", "BrokerIdTaken", "AdvertisedAddressTaken")
)
TRANSIENT_PAUSE_SECONDS = 5.0

# A worker that does not stop is killed after this long; closing many logs takes seconds.
STOP_SECONDS = 60.0
# A process that waits in the kernel for a disk ends when the disk responds, not before.
KILLED_SECONDS = 10.0
# How long a worker may take to be in sync again before the next one is replaced.
IN_SYNC_SECONDS = 300.0
_LOOK_SECONDS = 0.2
# A worker reports once a second. One that is silent for so long does not serve clients.
SILENT_SECONDS = 10
# Between two attempts to open the file of the tree after it could not be written.
_TREE_RETRY_SECONDS = 1.0


def supervise(config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser]) -> int:
    """Runs the workers until they are stopped; returns the exit code of `ottla start`."""
    try:
        prepared = prepare(config)
    except Exception as error:
        if not is_expected(error):
            raise
        print(f"ottla: {error}", file=sys.stderr)
        return exit_code(error)
    try:
        preload()
        lines.prepare()

        def run(number: int, ports: Mapping[str, int]) -> int:
            for each in prepared.held:
                each.close()
            users = new_users if number == 0 else ()
            return run_worker(prepared.configs[number], lines, users, ports)

        fork_server, control = start_fork_server(run)
        gc.enable()  # what was imported is frozen
        return run_process(Supervisor(config, prepared, fork_server, control).run())
    finally:
        prepared.clean_up()


class Worker:
    """What the supervisor knows of one worker. `phase` is starting, running, stopping, pausing,
    stopped or given up."""

    def __init__(self, config: BrokerConfig) -> None:
        assert config.worker is not None
        self.place: WorkerPlace = config.worker
        self.config = config
        self.number = self.place.number
        self.phase = "stopped"
        self.pid = 0
        self.restarts = 0
        #: Of the last start that was complete: broker id, cluster id, ports, lines of the banner.
        self.ready: dict[str, Any] = {}
        #: The last report: `state` as /statusz has it, why it is not ready, warnings.
        self.report: dict[str, Any] = {}
        #: Seconds of the supervisor's own, which do not pass while it is stopped.
        self.silent_seconds = 0
        #: Why the last start failed, and its exit code.
        self.failure: tuple[str, int] | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.outside: asyncio.Future[int] | None = None
        self.changed = asyncio.Event()
        self.ends: deque[float] = deque(maxlen=config.ottla_workers_restart_limit)

    def __str__(self) -> str:
        broker_id = self.broker_id
        return f"worker {self.number}" + ("" if broker_id is None else f" (broker {broker_id})")

    @property
    def broker_id(self) -> int | None:
        """None before the first start was complete."""
        return self.ready.get("broker_id")

    @property
    def is_controller(self) -> bool:
        """Whether it was the controller when it reported last."""
        controller = self.report.get("state", {}).get("controller_id", -1)
        return bool(controller == self.broker_id)

    def set_phase(self, phase: str) -> None:
        """Wakes whoever waits for a change."""
        self.phase = phase
        self.changed.set()

    def problem(self) -> str | None:
        """Why it does not serve clients, None if it does."""
        if self.phase == "running":
            if self.silent_seconds > SILENT_SECONDS:
                return f"it has not reported for {self.silent_seconds} seconds"
            reason = self.report.get("not_ready")
            return None if reason is None else str(reason)
        if self.phase == "starting":
            return str(self.report.get("not_ready") or "it starts")
        if self.phase == "given up":
            return f"it ended {len(self.ends)} times and was given up; see the log"
        return f"it is {self.phase}"

    def send(self, message: dict[str, Any]) -> bool:
        """False if it is not connected."""
        if self.writer is None or self.writer.is_closing():
            return False
        self.writer.write(json.dumps(message).encode() + b"\n")
        return True

    def signal(self, number: signal.Signals) -> None:
        """To its process, if there is one."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Supervisor:
    """Runs once, on one event loop."""

    def __init__(
        self, config: BrokerConfig, prepared: Prepared, fork_server: int, control: socket.socket
    ) -> None:
        self.workers = [Worker(each) for each in prepared.configs]
        self._config = config
        self._prepared = prepared
        self._fork_server = fork_server
        self._control = control
        self._forks: asyncio.StreamWriter | None = None
        self._tree: ZooKeeperServer | None = None
        self._tree_task: asyncio.Task[None] | None = None
        self._end: asyncio.Future[int] | None = None
        self._has_forks = True
        self._is_complete = False
        self._is_stopping = False
        self._replacement: asyncio.Task[None] | None = None
        self._http = WorkersHttp(config, self.workers)

    async def run(self) -> int:
        """Starts, waits for the end, stops; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_for, number.name)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as with nohup
            loop.add_signal_handler(signal.SIGHUP, self._replace_all)
        place = self._prepared.place
        server = await asyncio.start_unix_server(
            self._serve_worker, place.control_socket, limit=MAX_MESSAGE_BYTES
        )
        reader, self._forks = await asyncio.open_connection(sock=self._control)
        forks = spawn(self._read_forks(reader), name="fork-server")
        counting = spawn(self._count_silence(), name="count-silence")
        code = FAILED
        try:
            await self._open_tree()
            await self._http.open()
            starting = spawn(self._start_all(), name="start-workers")
            code = await self._end
            await stop(starting)
        except Exception as error:
            if not is_expected(error):
                logger.exception("the supervisor cannot start")
            else:
                print(f"ottla: {error}", file=sys.stderr)
            code = exit_code(error)
        self._is_stopping = True
        if self._replacement is not None:
            await stop(self._replacement)
        await self._stop_all()
        await self._http.close()
        server.close()
        await self._close_tree()
        await stop(forks, counting)
        self._forks.close()  # the fork server ends at that
        with suppress(ChildProcessError):
            await asyncio.to_thread(os.waitpid, self._fork_server, 0)
        if code == STOPPED and all(worker.phase == "stopped" for worker in self.workers):
            logger.info("all workers have stopped")
        return code

    def _stop_for(self, reason: str) -> None:
        logger.info("stopping because of %s", reason)
        self._finish(STOPPED)

    def _finish(self, code: int) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(code)

    # The tree

    async def _open_tree(self) -> None:
        """Raises StoreError."""
        if self._prepared.tree_file is None:
            return
        tree = self._tree = ZooKeeperServer(self._prepared.tree_file, process_of=peer_process)
        await tree.start_unix(self._prepared.place.tree_socket)
        # Their processes have ended: no directory is locked.
        tree.end_sessions()
        self._tree_task = spawn(self._keep_tree(), name="znode-tree")

    async def _keep_tree(self) -> None:
        """When the file cannot be written, responses stop and the tree is opened again. Sessions
        are in the file, and brokers reconnect."""
        while True:
            tree = self._tree
            assert tree is not None
            assert tree.failure is not None
            try:
                await asyncio.shield(tree.failure)
            except Exception as error:
                logger.error("The znode tree cannot be written, opening it again: %s", error)
            await tree.stop()
            while True:
                await asyncio.sleep(_TREE_RETRY_SECONDS)
                tree = self._tree = ZooKeeperServer(
                    self._prepared.tree_file, process_of=peer_process
                )
                try:
                    await tree.start_unix(self._prepared.place.tree_socket)
                    break
                except (StoreError, OSError) as error:
                    logger.error("The znode tree cannot be opened: %s", error)
            logger.info("The znode tree is open again")

    async def _close_tree(self) -> None:
        if self._tree_task is not None:
            await stop(self._tree_task)
        if self._tree is not None:
            await self._tree.stop()

    # Starting

    async def _start_all(self) -> None:
        """The first worker alone: it creates the cluster, and gets the first broker id."""
        first, *others = self.workers
        self._start(first)
        if not await self._is_ready(first):
            return
        for worker in others:
            self._start(worker)
        for worker in others:
            if not await self._is_ready(worker):
                return
        self._is_complete = True
        announce_workers(
            self._config,
            [worker.ready for worker in self.workers],
            self._prepared.place.bootstrap,
            self._http.port,
        )

    async def _is_ready(self, worker: Worker) -> bool:
        """Waits for the end of a start."""
        while worker.phase == "starting":
            worker.changed.clear()
            await worker.changed.wait()
        return worker.phase == "running"

    def _start(self, worker: Worker) -> None:
        worker.failure = None
        worker.report = {}
        worker.silent_seconds = 0
        worker.set_phase("starting")
        assert self._forks is not None
        message = {"fork": worker.number, "ports": worker.ready.get("ports", {})}
        self._forks.write(json.dumps(message).encode() + b"\n")

    async def _read_forks(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                message = json.loads(line)
                if "forked" in message:
                    worker = self.workers[message["forked"]]
                    worker.pid = message["pid"]
                    if worker.phase == "stopping":  # it was stopped before it had a process
                        worker.signal(signal.SIGTERM)
                    continue
                if "not_forked" in message:
                    worker = self.workers[message["not_forked"]]
                    worker.failure = (f"no process: {os.strerror(message['errno'])}", FAILED)
                    self._ended(worker, FAILED)
                    continue
                for worker in self.workers:
                    if worker.pid == message["ended"]:
                        self._ended(worker, message["code"])
        # Nothing reports the end of workers any more, nor starts them again.
        self._has_forks = False
        logger.error("The process that forks the workers has ended: stopping all of them")
        self._finish(FAILED)

    def _ended(self, worker: Worker, code: int) -> None:
        pid, worker.pid = worker.pid, 0
        if self._tree is not None and pid:
            self._tree.end_sessions(pid)
        if self._is_stopping or worker.phase == "stopping":
            worker.set_phase("stopped")
            return
        how = f"by {signal_name(-code)}" if code < 0 else f"with code {code}"
        reason = f": {worker.failure[0]}" if worker.failure is not None else ""
        if not self._is_complete:
            print(
                f"ottla: {worker}{reason or f': it ended {how} before it was ready'}",
                file=sys.stderr,
            )
            worker.set_phase("stopped")
            self._finish(worker.failure[1] if worker.failure is not None else FAILED)
            return
        now = monotonic()
        if code in TRANSIENT:
            self._pause(worker, how, reason, TRANSIENT_PAUSE_SECONDS)
            return
        worker.ends.append(now)
        if len(worker.ends) == worker.ends.maxlen and now - worker.ends[0] < ENDS_WITHIN_SECONDS:
            logger.error(
                "%s has ended %s%s, %d times in %d seconds: it is not started again. Repair the "
                "cause, then send SIGHUP to the supervisor (process %d) or restart it",
                worker,
                how,
                reason,
                len(worker.ends),
                now - worker.ends[0],
                os.getpid(),
            )
            worker.set_phase("given up")
            return
        recent = sum(now - each < ENDS_WITHIN_SECONDS for each in worker.ends)
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (recent - 1), MAX_PAUSE_SECONDS)
        self._pause(worker, how, reason, pause)

    def _pause(self, worker: Worker, how: str, reason: str, pause: float) -> None:
        logger.error("%s has ended %s%s: starting it in %g s", worker, how, reason, pause)
        worker.set_phase("pausing")
        asyncio.get_running_loop().call_later(pause, partial(self._start_again, worker))

    def _start_again(self, worker: Worker) -> None:
        if worker.phase == "pausing" and not self._is_stopping:
            worker.restarts += 1
            self._start(worker)

    # Messages of workers

    async def _serve_worker(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        worker: Worker | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if worker is None:
                    worker = self.workers[message["worker"]]
                    worker.writer = writer
                    if worker.phase == "stopping":
                        worker.send({"stop": True, "hand_over": False})
                else:
                    self._told(worker, message)
        except (OSError, ValueError):
            pass  # a process that ends in the middle of a line
        finally:
            if worker is not None and worker.writer is writer:
                worker.writer = None
            writer.close()

    def _told(self, worker: Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = message["ready"]
            if worker.phase == "starting":
                worker.set_phase("running")
                worker.silent_seconds = 0
                if worker.restarts or self._is_complete:
                    logger.info("%s serves clients", worker)
        elif "failed" in message:
            worker.failure = (message["failed"], message["code"])
        elif "in_sync" in message:
            if worker.outside is not None and not worker.outside.done():
                worker.outside.set_result(message["in_sync"])
        else:
            worker.report = message
            worker.silent_seconds = 0

    async def _count_silence(self) -> None:
        while True:
            await asyncio.sleep(1)
            for worker in self.workers:
                worker.silent_seconds += 1

    # Stopping

    async def _stop_all(self) -> None:
        """The controller last: the others hand leaderships over by it. On a machine without
        ZooKeeper all brokers of the cluster stop, and none can take over."""
        hand_over = self._prepared.tree_file is None
        controllers = [worker for worker in self.workers if worker.is_controller]
        others = [worker for worker in self.workers if worker not in controllers]
        for group in (others, controllers):
            await asyncio.gather(*(self._stop(worker, hand_over) for worker in group))

    async def _stop(self, worker: Worker, hand_over: bool) -> bool:
        """Returns when its process has ended, False if it does not end."""
        if not worker.pid and worker.phase != "starting":
            worker.set_phase("stopped")
            return True
        worker.set_phase("stopping")
        if not worker.send({"stop": True, "hand_over": hand_over}):
            worker.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._until_stopped(worker)
        except TimeoutError:
            logger.error("%s does not stop in %g s: killing it", worker, STOP_SECONDS)
            worker.signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(KILLED_SECONDS):
                    await self._until_stopped(worker)
            except TimeoutError:
                logger.error("%s cannot be killed: it waits for a disk that hangs", worker)
                return False
        return True

    async def _until_stopped(self, worker: Worker) -> None:
        while worker.phase != "stopped":
            if not self._has_forks and not is_alive(worker.pid):
                worker.set_phase("stopped")
                return
            worker.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await worker.changed.wait()

    # Replacing

    def _replace_all(self) -> None:
        """For SIGHUP."""
        if self._is_stopping:
            return
        if not self._is_complete:
            logger.warning("SIGHUP: ignored, the workers have not all started yet")
            return
        if self._replacement is not None and not self._replacement.done():
            logger.warning("SIGHUP: the workers are being replaced already")
            return
        self._replacement = spawn(self._replace(), name="replace-workers")

    async def _replace(self) -> None:
        """One after the other: the next one when the last one is in sync, so that topics with
        replicas elsewhere stay available."""
        logger.info("SIGHUP: replacing the workers, one after the other")
        for worker in self.workers:
            if not await self._stop(worker, hand_over=True):
                # It has its directories and ports still. Once it ends it is started again.
                worker.set_phase("running")
                logger.error("The replacement ends at %s, which does not stop", worker)
                return
            worker.ends.clear()
            self._start(worker)
            while worker.phase in ("starting", "pausing"):
                worker.changed.clear()
                await worker.changed.wait()
            if worker.phase != "running":
                logger.error("The replacement ends at %s, which does not start", worker)
                return
            if not await self._is_in_sync(worker):
                logger.error(
                    "The replacement ends at %s, whose replicas are not in sync after %g s",
                    worker,
                    IN_SYNC_SECONDS,
                )
                return
        logger.info("all workers are replaced")

    async def _is_in_sync(self, worker: Worker) -> bool:
        deadline = monotonic() + IN_SYNC_SECONDS
        loop = asyncio.get_running_loop()
        while monotonic() < deadline:
            worker.outside = loop.create_future()
            if worker.send({"ask": "in_sync"}):
                with suppress(TimeoutError):
                    async with asyncio.timeout(SILENT_SECONDS):
                        if await worker.outside == 0:
                            return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False


def signal_name(number: int) -> str:
    """Such as SIGKILL; those between SIGRTMIN and SIGRTMAX have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_alive(pid: int) -> bool:
    """Whether a process runs that another one forked; in a container it may be a child by now. 0 is
    no process: to the kernel it would be those of the own group."""
    if not pid:
        return False
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def peer_process(transport: asyncio.Transport) -> int:
    """The id of the process at the other end of a Unix socket; 0 where the system does not say."""
    peer_credentials: int | None = getattr(socket, "SO_PEERCRED", None)
    if peer_credentials is None:
        return 0
    form = struct.Struct("3i")
    raw = transport.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, peer_credentials, form.size
    )
    pid: int = form.unpack(raw)[0]
    return pid
