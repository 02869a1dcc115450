"""Brokers for Kafka's own tests: `ottla start`, with a loopback port that shows what those tests read.

    python -m tests.compat.kafka_tests.broker

The harness of Kafka's tests runs its brokers in the JVM of the test and reads their metadata cache,
the offsets of their logs and their producer state. This process starts brokers as processes, and
each has a port that answers the same questions, so that a test waits for the true state of a broker.

Each line of the standard input is a JSON object, {"properties": FILE, "log": FILE, "state": FILE,
"options": TEXT}, and makes one broker with this settings file; `options` is its KAFKA_OPTS. Its
process id is the answer, a line of the standard output. When the broker serves clients it writes
`state`: {"ports": {LISTENER: PORT}, "inspection": PORT, "cluster_id": TEXT}. All brokers are forks of
this process, which has imported the modules already: a test starts up to six. They end with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ottla.broker.__main__ as start
from ottla.broker.server import broker_server
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

# What a fork should not import once more.
_WARM = (
    "ottla.broker.handlers.table",
    "ottla.broker.observability.banner",
    "ottla.broker.server.parts",
    "ottla.controller.tree.zookeeper_store",
)


class InspectedBroker(broker_server.BrokerServer):
    """A broker with the port that shows its state."""

    state_file = Path("state.json")

    async def start(self) -> dict[str, int]:
        """Starts the broker, then writes the state file."""
        ports = await super().start()
        server = await asyncio.start_server(self._serve_inspection, "127.0.0.1", 0)
        state = {
            "ports": ports,
            "inspection": server.sockets[0].getsockname()[1],
            "cluster_id": self.parts.base.cluster_id,
            "broker_id": self.parts.base.broker_id,
        }
        partial = self.state_file.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.rename(self.state_file)
        return ports

    async def _serve_inspection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                question = json.loads(line)
                answer = getattr(self, f"_show_{question[0]}")(*question[1:])
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _show_metadata(self) -> object:
        known = self.parts.base.metadata.snapshot
        brokers = [
            {
                "id": broker.broker_id,
                "rack": broker.rack,
                "endpoints": [[name, *where] for name, where in broker.endpoints.items()],
            }
            for broker in known.brokers.values()
        ]
        topics = [
            {
                "name": topic.name,
                "id": base64.urlsafe_b64encode(topic.topic_id).decode().rstrip("="),
                "partitions": [list(each) for each in topic.partitions.values()],
            }
            for topic in known.topics.values()
        ]
        return {
            "controller_id": known.controller_id,
            "controller_epoch": known.controller_epoch,
            "brokers": brokers,
            "topics": topics,
        }

    def _show_partition(self, topic: str, index: int) -> object:
        """The replica and the log of a partition, null where there is none."""
        key = TopicPartition(topic, index)
        partition = self.parts.replicas.manager.partitions.get(key)
        log = self.parts.base.logs.get(topic, index)
        shown = None
        if partition is not None and not partition.offline:
            shown = {
                "is_leader": partition.is_leader,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "isr": sorted(partition.isr),
                "replicas": partition.replicas,
            }
        return {"partition": shown, "log": None if log is None else _shown_log(log)}


def _shown_log(log: Log) -> object:
    return {
        "directory": log.path,
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "segments": len(log.segments),
        "producers": [
            [each.producer_id, each.epoch, each.last_sequence, each.last_offset]
            for each in log.producer_state.producers.values()
        ],
    }


def _run_broker(order: dict[str, str]) -> int:
    """One broker in this process, which is a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(order["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["KAFKA_OPTS"] = order.get("options", "")
    InspectedBroker.state_file = Path(order["state"])
    return start.main([order["properties"]])


def main() -> None:
    """Starts a broker for each line; kills all of them at the end of the input."""
    for name in _WARM:
        __import__(name)
    broker_server.BrokerServer = InspectedBroker  # type: ignore[misc]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a broker ended
    gc.freeze()
    started = []
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _run_broker(json.loads(line))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        started.append(child)
        print(child, flush=True)
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
