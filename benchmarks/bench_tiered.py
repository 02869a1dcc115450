"""Scans of history from remote storage, beside the same scan of the local log.

One broker with a folder as remote store and two topics with the same records: one is on the local
disk, of the other one only the last segment is. Each is scanned by a client that counts records.
Then the latency of records at the tail of a third topic is measured without and during scans.

    python -m benchmarks.bench_tiered [--megabytes 200] [--seconds 5]
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import latency, wire
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.records.reader import iterate_entries
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually

SEGMENT_BYTES = 32 << 20
BATCH_RECORDS = 100
RECORD_BYTES = 1_000
FETCH_VERSION = 12
RATE = 1_000


def settings(store: Path) -> dict[str, str]:
    return {
        "remote_log_storage_system_enable": "true",
        "remote_log_storage_manager_class_name": "aiven",
        "remote_log_manager_task_interval_ms": "200",
        "rlmm_config_remote_log_metadata_topic_num_partitions": "1",
        "rlmm_config_remote_log_metadata_topic_replication_factor": "1",
        "rsm_config_storage_backend_class": "filesystem",
        "rsm_config_storage_root": str(store),
        "rsm_config_chunk_size": str(4 << 20),
        "rsm_config_fetch_chunk_cache_prefetch_max_size": str(8 << 20),
        "remote_fetch_max_wait_ms": "5000",
        "log_initial_task_delay_ms": "200",
        "log_retention_check_interval_ms": "200",
    }


def create(bootstrap: str, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)


def fill(bootstrap: str, topic: str, batches: int) -> None:
    request = wire.produce_request(topic, 0, wire.records(BATCH_RECORDS, RECORD_BYTES))
    wire.check(bootstrap, request)
    with wire.connect(bootstrap) as sock:
        for _ in range(batches - 1):
            wire.call(sock, request, wire.PRODUCE_VERSION)


def scan(bootstrap: str, topic: str, end: int) -> float:
    """Megabytes a second of one client, one request after the other."""
    begun, moved, offset = time.perf_counter(), 0, 0
    with wire.connect(bootstrap) as sock:
        while offset < end:
            request = wire.fetch_request(topic, 0, offset)
            response = wire.call(sock, request, FETCH_VERSION)
            assert isinstance(response, FetchResponse)
            records = response.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            for _, header in iterate_entries(records):
                offset = header.next_offset
            moved += len(records)
    return moved / 1e6 / (time.perf_counter() - begun)


def _scan_on(bootstrap: str, topic: str, end: int) -> None:
    while True:
        scan(bootstrap, topic, end)


def measure(megabytes: int, seconds: float) -> dict[str, float]:
    batches = megabytes * 1_000_000 // (BATCH_RECORDS * RECORD_BYTES)
    end = batches * BATCH_RECORDS
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        store.mkdir()
        with start_broker(Path(folder), **settings(store)) as broker:
            address = broker.bootstrap
            create(address, "local", **{"segment.bytes": str(SEGMENT_BYTES)})
            tiered = {
                "segment.bytes": str(SEGMENT_BYTES),
                "remote.storage.enable": "true",
                "local.retention.bytes": "1",
            }
            create(address, "remote", **tiered)
            create(address, "tail")
            fill(address, "local", batches)
            fill(address, "remote", batches)
            log = broker.data_directory / "remote-0"
            eventually(lambda: len(list(log.glob("*.log"))) == 1, seconds=300)
            found["local scan, MB/s"] = scan(address, "local", end)
            found["first remote scan, MB/s"] = scan(address, "remote", end)
            found["second remote scan, MB/s"] = scan(address, "remote", end)
            wire.check(address, wire.produce_request("tail", 0, wire.records(1, 100)))
            alone = latency.latencies_ms(address, "tail", RATE, seconds)
            found["tail p99 alone, ms"] = alone["p99"]
            for topic in ("local", "remote"):
                process = multiprocessing.Process(target=_scan_on, args=(address, topic, end))
                process.start()
                try:
                    during = latency.latencies_ms(address, "tail", RATE, seconds)
                finally:
                    process.kill()
                    process.join()
                found[f"tail p99 during {topic} scans, ms"] = during["p99"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    table = Table("measurement", "value")
    for name, value in measure(arguments.megabytes, arguments.seconds).items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
