"""`make bench-tiered`: scans of history from remote storage, beside the same scan of the local log.

One broker with a folder as remote store and two topics with the same records: one is on the local
disk, of the other one only the last segment is. Measured are

- a copy of a segment to the store, in this process: megabytes a second, and the part of a core;
- scans by a client that counts records, in turns: local, remote, remote again. A remote scan is
  cold: the broker has opened and verified none of its chunks, whose bytes are in the page cache.
  When it is repeated, the chunks are known;
- the latency of records at the tail of a third topic, in turns: alone, during scans of the local
  topic, of the remote one (each of them cold), and of a process that does nothing but sendfile
  (`bare_scans`): that is the floor, the scans take processor time from the tail without the broker.

Medians of the rounds are printed, and their ratios.

    python -m benchmarks.bench_tiered [--megabytes 200] [--seconds 5] [--rounds 3] [--only tail]
"""

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import bare_scans, latency, wire
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.remote.open_remote_storage import open_remote_storage
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.remote_segments import segment_files, segment_metadata

SEGMENT_BYTES = 32 << 20
BATCH_RECORDS = 100
RECORD_BYTES = 1_000
FETCH_VERSION = 12
RATE = 1_000
#: Megabytes a second, at which the processor time of copies is stated.
TARGET_COPY_RATE = 200


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


def make_cold(store: Path) -> None:
    """The broker verifies all chunks again: an object that was written to is another one."""
    for path in store.rglob("*.log"):
        os.utime(path)


def _scan_on(bootstrap: str, topic: str, end: int, store: Path) -> None:
    while True:
        make_cold(store)
        scan(bootstrap, topic, end)


def measure_copy(directory: Path, megabytes: int) -> dict[str, float]:
    """A segment of this size to a folder: read, checksums of its chunks, written and synced."""
    store = directory / "copies"
    store.mkdir()
    source = random.Random(1)
    content = b"".join(source.randbytes(1 << 20) for _ in range(megabytes))
    files = segment_files(directory / "segment", content)
    prefix = "rsm_config_"
    settings_of_store = {
        name.removeprefix(prefix).replace("_", "."): value
        for name, value in settings(store).items()
        if name.startswith(prefix)
    }
    storage = open_remote_storage(settings_of_store)
    rates, loads = [], []
    for number in range(4):
        metadata = segment_metadata(len(content), segment_id=UUID(int=number))
        begun, used = time.perf_counter(), time.process_time()
        storage.copy_log_segment(metadata, files)
        seconds = time.perf_counter() - begun
        rates.append(len(content) / 1e6 / seconds)
        loads.append(100 * (time.process_time() - used) * TARGET_COPY_RATE / (len(content) / 1e6))
        storage.delete_log_segment(metadata)
    return {
        "copy to a folder, MB/s": statistics.median(rates),
        f"copies at {TARGET_COPY_RATE} MB/s, % of a core": statistics.median(loads),
    }


@contextmanager
def scans(address: str, topic: str, end: int, store: Path) -> Iterator[None]:
    """While it is open, another process scans the topic, again and again. "" scans nothing."""
    if not topic:
        yield
        return
    process = multiprocessing.Process(target=_scan_on, args=(address, topic, end, store))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def measure_scans(address: str, end: int, rounds: int, store: Path) -> dict[str, float]:
    scan(address, "local", end)
    found = {"first remote scan, MB/s": scan(address, "remote", end)}
    rates: dict[str, list[float]] = {"local": [], "cold remote": [], "repeated remote": []}
    remote = ["cold remote", "repeated remote"]
    for number in range(2 * rounds):
        make_cold(store)
        for name in ["local", *remote] if number % 2 else [*remote, "local"]:
            rates[name].append(scan(address, name.split()[-1], end))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    found |= {f"{name} scan, MB/s": rate for name, rate in medians.items()}
    for name in remote:
        found[f"{name} scan : local scan"] = medians[name] / medians["local"]
    return found


def measure_tail(
    address: str, end: int, rounds: int, seconds: float, store: Path
) -> dict[str, float]:
    """The tail is that of a new topic; a client scans another topic as fast as it can."""
    p99: dict[str, list[float]] = {}
    with bare_scans.bare_server(address, "local") as bare:
        cases = {
            "alone": (address, ""),
            "during local scans": (address, "local"),
            "during remote scans": (address, "remote"),
            "during bare scans": (bare, "local"),
        }
        for number in range(rounds):
            for name in sorted(cases, reverse=number % 2 == 1):
                tail = f"tail-{number}-{name.replace(' ', '-')}"
                create(address, tail)  # the client expects that its records are the first ones
                with scans(*cases[name], end, store):
                    found = latency.latencies_ms(address, tail, RATE, seconds)
                p99.setdefault(name, []).append(found["p99"])
    medians = {name: statistics.median(each) for name, each in p99.items()}
    remote = medians.pop("during remote scans")
    return {
        "tail p99 during remote scans, ms": remote,
        **{f"tail p99 {name}, ms": value for name, value in medians.items()},
        **{f"tail p99 during remote scans : {name}": remote / medians[name] for name in medians},
    }


def measure(megabytes: int, seconds: float, rounds: int, only: str = "") -> dict[str, float]:
    batches = megabytes * 1_000_000 // (BATCH_RECORDS * RECORD_BYTES)
    end = batches * BATCH_RECORDS
    with tempfile.TemporaryDirectory(prefix="bench-tiered") as folder:
        found = {} if only else measure_copy(Path(folder), min(megabytes, 256))
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
            fill(address, "local", batches)
            fill(address, "remote", batches)
            log = broker.data_directory / "remote-0"
            eventually(lambda: len(list(log.glob("*.log"))) == 1, seconds=300)
            if only != "tail":
                found |= measure_scans(address, end, rounds, store)
            if only != "scans":
                found |= measure_tail(address, end, rounds, seconds, store)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["scans", "tail"], default="")
    arguments = parser.parse_args()
    found = measure(arguments.megabytes, arguments.seconds, arguments.rounds, arguments.only)
    table = Table("measurement", "value")
    for name, value in found.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
