"""What it costs to read the lag of very many groups: one GET of /metrics."""

import asyncio
import statistics
import time
import urllib.request

import uvloop

from benchmarks import clients, targets
from benchmarks.coordinators import COMMIT_VERSION, COMMITTERS, connect, coordinator_of
from ottla.cli.zookeeper_server import free_port
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

Measurements = dict[str, float]

GROUPS = 2_000
PARTITIONS = 10
TOPIC = "scraped"
READY_DEADLINE_S = 60.0


async def _commit(target: targets.Target, groups: int) -> None:
    await coordinator_of(target.bootstrap, "ready")
    clients.create_topic(target.bootstrap, TOPIC, PARTITIONS)
    clients.produce_records_per_s(target.bootstrap, TOPIC, 1_000, 100, {})
    numbers = iter(range(groups))

    async def work() -> None:
        wire = await connect(target.bootstrap)
        for number in numbers:
            rows = [
                OffsetCommitRequestPartition(index, number % 50, committed_metadata="")
                for index in range(PARTITIONS)
            ]
            topics = [OffsetCommitRequestTopic(TOPIC, rows)]
            request = OffsetCommitRequest(f"scraped-{number}", -1, "", topics=topics)
            await wire.call(request, COMMIT_VERSION)
        wire.close()

    await asyncio.gather(*(work() for _ in range(COMMITTERS)))


def _get(url: str, wanted: int) -> float:
    """Milliseconds for one scrape that holds at least so many lags."""
    begun = time.perf_counter()
    with urllib.request.urlopen(url, timeout=READY_DEADLINE_S) as response:
        text = response.read()
    taken = (time.perf_counter() - begun) * 1000
    found = text.count(b'\nottla_group_lag_records{group="scraped-')
    assert found == wanted, f"{found} lags instead of {wanted}"
    return taken


def scrape(target: targets.Target, scale: float) -> Measurements:
    """Ottla only: Kafka's brokers have no metric for the lag of groups."""
    if target.name != "ottla":
        return {}
    port = free_port()
    target.stop()
    target.settings["ottla.metrics.address"] = f"127.0.0.1:{port}"
    target.launch()
    clients.first_produce_s(target.bootstrap, target.started_at)  # it is there
    groups = int(GROUPS * min(1.0, scale))
    uvloop.run(_commit(target, groups))
    url = f"http://127.0.0.1:{port}/metrics"
    _get(url, groups * PARTITIONS)
    before = target.processor_seconds()
    taken = []
    for _ in range(5):
        time.sleep(1)  # both lags are computed once for one scrape, and not twice a second
        taken.append(_get(url, groups * PARTITIONS))
    used = (target.processor_seconds() - before) / len(taken)
    label = f"scrape of {groups:,} groups x {PARTITIONS} partitions"
    return {f"{label}: ms": statistics.median(taken), f"{label}: broker CPU ms": used * 1000}
