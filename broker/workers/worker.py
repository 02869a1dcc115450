"""A worker: one broker in a forked process, and its connection to the supervisor.

The connection is a Unix socket with a line of JSON for each message. The worker sends who it is,
then {"ready": ...} when clients are served or {"failed": sentence, "code": exit code}, and its
state once a second. The supervisor sends {"stop": true, "hand_over": bool} and {"ask": "in_sync"},
whose response is {"in_sync": number of own replicas outside the ISR}. At the end of the connection
the supervisor is gone, and the worker stops.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.broker.config.workers import kept_ports
from ottla.broker.observability.banner import listener_lines
from ottla.broker.observability.logs import LineFormatter
from ottla.broker.runtime.tasks import spawn, stop
from ottla.broker.server.process import SUPERVISOR, BrokerProcess, is_expected, run_process
from ottla.protocol.steps import Steps, run_in_turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.security.sasl.scram_admin import NewUser
    from ottla.broker.server.broker_server import BrokerServer

logger = logging.getLogger("ottla.worker")

#: How often a worker reports its state.
REPORT_SECONDS = 1.0
MAX_MESSAGE_BYTES = 1 << 20
"""A longer line would end the connection. The state with MAX_FAULTS faults is smaller."""
MAX_FAULTS = 200
MAX_REASON = 10_000
"""Letters of the reasons why a broker is not ready."""


def run_worker(
    config: BrokerConfig,
    lines: LineFormatter,
    new_users: Sequence[NewUser],
    ports: Mapping[str, int],
) -> int:
    """In the forked process: runs the broker until it is stopped; returns the exit code.

    `ports` are those of its last start, by listener.
    """
    place = config.worker
    assert place is not None
    if settings := kept_ports(config, ports):
        config = config.for_worker(settings, place)
    LineFormatter.worker = place.number
    if place.core is not None:
        try:
            os.sched_setaffinity(0, {place.core})
        except OSError as error:
            logger.warning("Failed to pin to core %d: %s", place.core, error.strerror)
    return run_process(_serve(config, lines, new_users))


async def _serve(config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser]) -> int:
    process = BrokerProcess(config, lines, new_users)
    control = SupervisorConnection(config, process)
    if not await control.connect():
        return 1
    try:
        return await process.run(control.ready, control.failed)
    finally:
        await control.close()


class SupervisorConnection:
    """The worker's end. Loop only."""

    def __init__(self, config: BrokerConfig, process: BrokerProcess) -> None:
        assert config.worker is not None
        self._config = config
        self._place = config.worker
        self._process = process
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> bool:
        """Whether the supervisor is there."""
        try:
            reader, self._writer = await asyncio.open_unix_connection(
                self._place.control_socket, limit=MAX_MESSAGE_BYTES
            )
        except OSError as error:
            logger.error("Worker %d has no supervisor: %s", self._place.number, error)
            return False
        self._send({"worker": self._place.number, "pid": os.getpid()})
        self._tasks = [
            spawn(self._obey(reader), name="supervisor"),
            spawn(self._report(), name="worker-state"),
        ]
        return True

    async def close(self) -> None:
        """Ends the connection after what was sent."""
        for task in self._tasks:
            await stop(task)
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    def ready(self, server: BrokerServer) -> None:
        """Clients are served."""
        parts = server.parts
        self._send(
            {
                "ready": {
                    "broker_id": parts.broker_id,
                    "cluster_id": parts.cluster_id,
                    "ports": server.ports,
                    "listeners": listener_lines(self._config, server.ports),
                    "not_ready": None if server.state is None else server.state.not_ready(),
                }
            }
        )
        self._send_state()

    def failed(self, error: Exception, code: int) -> None:
        """The start failed."""
        text = str(error) if is_expected(error) else "it cannot start; the log has the traceback"
        self._send({"failed": text, "code": code})

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                message = json.loads(line)
                if message.get("stop"):
                    server = self._process.server
                    server.hands_over = server.hands_over and bool(message["hand_over"])
                    self._process.stop(SUPERVISOR)
                elif message.get("ask") == "in_sync":
                    self._send({"in_sync": await run_in_turns(self._replicas_outside())})
        self._process.stop("the end of its supervisor")

    def _replicas_outside(self) -> Steps[int]:
        """The replicas of this broker that are not in the ISR, or have no leader."""
        parts = self._process.server.parts
        outside = 0
        for topic in parts.metadata.snapshot.topics.values():
            for each in topic.partitions.values():
                if parts.broker_id in each.replicas:
                    outside += parts.broker_id not in each.isr or each.leader < 0
                yield
        return outside

    async def _report(self) -> None:
        while True:
            self._send_state()
            await asyncio.sleep(REPORT_SECONDS)

    def _send_state(self) -> None:
        state = self._process.server.state
        if state is None:
            return
        document, not_ready = state.document(), state.not_ready()
        document["faults"] = document["faults"][:MAX_FAULTS]
        if document["reason"] is not None:
            document["reason"] = document["reason"][:MAX_REASON]
        self._send(
            {
                "state": document,
                "not_ready": None if not_ready is None else not_ready[:MAX_REASON],
                "warnings": state.warnings()[:MAX_FAULTS],
            }
        )
