"""What the tasks of a running query read, at the driver: Spark has no channel for it in streams.

    tasks = TaskListener(spark.conf.get("spark.driver.host"))
    spark.readStream.format("ottla").option("taskMetricsAddress", tasks.address)
    spark.streams.addListener(LagListener(print, tasks))

Each task sends one datagram (UDP) when it ends, with the object that it logs. No task waits for the
listener, and one that is away costs nothing; a datagram that the network loses is a task that is
not counted. The address ends with a secret: datagrams without it are ignored.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pyspark_ottla.warnings_on_stderr import spark_logger

logger = spark_logger()

# An object of a task has some 400 bytes, and a topic name at most 249.
DATAGRAM_BYTES_MAX = 8192
# Batches of all queries whose totals are kept; the ones that are oldest go first.
BATCHES_MAX = 1000
TOTALS = (
    "rows",
    "fetched_bytes",
    "remote_bytes",
    "remote_errors",
    "fetch_requests",
    "retries",
    "lost_offsets",
    "bad_records",
    "fetch_seconds",
    "decode_seconds",
)


def send(address: str, report: Mapping[str, Any]) -> None:
    """Sends the report of a task; a failure is a warning, because the rows are what matters."""
    place, _, secret = address.partition("/")
    host, _, port = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        [(family, kind, protocol, _, found), *_] = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_DGRAM
        )
        with socket.socket(family, kind, protocol) as sender:
            sender.sendto(json.dumps({"secret": secret, **report}).encode(), found)
    except OSError as error:
        logger.warning("The metrics of a task could not be sent to %s: %s", place, error)


class TaskListener:
    """Receives the reports of tasks in a thread of its own, until it is closed.

    `host` is the address of this process as executors reach it. `callback` gets the object of each
    task, with the names of `lag.TASK_COLUMNS`; it must be quick and must not raise.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        callback: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((host, port))
        self._secret = secrets.token_hex(8)
        self._callback = callback
        self._totals: OrderedDict[tuple[str, int], dict[str, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False
        shown = f"[{host}]" if ":" in host else host
        self._place = f"{shown}:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="ottla task metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The value of the option `taskMetricsAddress`."""
        return f"{self._place}/{self._secret}"

    def totals(self, query_id: str, batch: int) -> dict[str, float]:
        """Sums over the tasks of a batch that have ended, and their number as `tasks`; empty for
        an unknown batch. Attempts that Spark repeats count each."""
        with self._lock:
            return dict(self._totals.get((query_id, batch), {}))

    def close(self) -> None:
        self._is_closed = True
        # Ends the wait of the thread, which a closed socket does not on every system.
        send(self.address, {})
        self._thread.join(5)
        self._socket.close()

    def __enter__(self) -> TaskListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                data = self._socket.recv(DATAGRAM_BYTES_MAX)
            except OSError:
                return
            report = self._parse(data)
            if report is None or self._is_closed:
                continue
            self._add(report)
            if self._callback is not None:
                self._callback(report)

    def _parse(self, data: bytes) -> dict[str, Any] | None:
        """The object of a task; None for anything else that reaches the port."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not all(
            isinstance(found.get(name, 0), (int, float)) for name in TOTALS
        ):
            return None
        secret = found.pop("secret", None)
        if not isinstance(secret, str) or not secrets.compare_digest(
            secret.encode(), self._secret.encode()
        ):
            return None
        return found

    def _add(self, report: Mapping[str, Any]) -> None:
        query, batch = report.get("query"), report.get("batch")
        if (
            not isinstance(query, str)
            or not isinstance(batch, str)
            or not batch.isdecimal()
            or len(batch) > 19
        ):
            return  # a batch read, which is no batch of a query
        key = (query, int(batch))
        with self._lock:
            sums = self._totals.setdefault(key, {"tasks": 0, **dict.fromkeys(TOTALS, 0)})
            sums["tasks"] += 1
            for name in TOTALS:
                sums[name] += report.get(name, 0)
            while len(self._totals) > BATCHES_MAX:
                self._totals.popitem(last=False)
