"""An honest producer and health checks in a process of their own, with the time of each."""

from __future__ import annotations

import multiprocessing
import time
import urllib.request
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from confluent_kafka import Producer

from tests.hostile.cluster import TOPIC

DEADLINE_SECONDS = 60.0
PAUSE_SECONDS = 0.005


def watch(config: dict[str, str], ready_url: str, stop: Event, results: Connection) -> None:
    """Produces one record after the other and requests the readiness, until `stop`; sends two lists
    of seconds."""
    producer = Producer(config)
    produced: list[float] = []
    ready: list[float] = []
    while not stop.is_set():
        started_at = time.perf_counter()
        producer.produce(TOPIC, b"x" * 1000)
        if producer.flush(DEADLINE_SECONDS):
            raise AssertionError(f"a record was not acknowledged in {DEADLINE_SECONDS} s")
        produced.append(time.perf_counter() - started_at)
        if len(produced) % 20 == 0:
            started_at = time.perf_counter()
            with urllib.request.urlopen(ready_url, timeout=DEADLINE_SECONDS) as response:
                assert response.status == 200
            ready.append(time.perf_counter() - started_at)
        time.sleep(PAUSE_SECONDS)
    results.send((produced, ready))


class Watcher:
    """The process, for one stretch of time."""

    def __init__(self, config: dict[str, str], ready_url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._results, child = context.Pipe(duplex=False)
        self._process = context.Process(target=watch, args=(config, ready_url, self._stop, child))
        self._process.start()

    def finish(self) -> tuple[list[float], list[float]]:
        """Seconds of each record and of each health check."""
        self._stop.set()
        if not self._results.poll(2 * DEADLINE_SECONDS):
            raise AssertionError("the honest client does not end")
        found: tuple[list[float], list[float]] = self._results.recv()
        self._process.join()
        return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
