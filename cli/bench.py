"""`ottla bench`: measures a broker with one simple client, on a topic of its own."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.offsets import EARLIEST, LATEST, offsets_at, partitions_of
from ottla.cli.output import Cell, note, print_json, print_rows
from ottla.cli.produce import Writer
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session, check, connected
from ottla.cli.values import CODEC_NAMES, codec_id
from ottla.protocol.client.operations import Controller, Versions
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicState as Doomed
from ottla.protocol.records.record import NewRecord

app = family("Measure produce and consume with a simple client.")


@app.command()
@connected
def bench(
    session: Session,
    records: Annotated[
        int, typer.Option("--records", "-n", min=1, help="Number of records.")
    ] = 50_000,
    size: Annotated[int, typer.Option("--size", min=1, help="Value size in bytes.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records in each batch.")] = 500,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", "-r", min=1)] = 1,
    codec: Annotated[
        str, typer.Option("--codec", help=f"One of {', '.join(CODEC_NAMES)}.")
    ] = "none",
    acks: Annotated[int, typer.Option("--acks", min=-1, max=1, help="-1 (all), 0 or 1.")] = -1,
    round_trips: Annotated[
        int, typer.Option("--round-trips", min=1, help="Number of single records for the latency.")
    ] = 200,
) -> None:
    """Measure produce, consume and round trips of single records.

    The client has one connection and one request in flight: compare brokers, not clients.
    A topic is created and deleted.

    \b
    Examples:
      ottla bench
      ottla bench -b broker-1:9092 --json
    """
    topic = f"ottla-bench-{os.getpid()}-{int(time.time())}"
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic, num_partitions=partitions, replication_factor=replication_factor
            )
        ],
        timeout_ms=session.timeout_ms,
    )
    created = session.call(CreateTopicsResponse, request, Controller()).topics[0]
    check(created.error_code, f"topic {topic}", created.error_message)
    try:
        writer = Writer(session, topic, codec_id(codec), acks, None)
        now_ms = time.time_ns() // 1_000_000
        # Half random, half zeros: compresses about 2:1, as text does at the least.
        value = (os.urandom(-(-size // 2)) + bytes(size // 2))[:size]
        whole: list[NewRecord] = [(now_ms, None, value, None)] * batch
        started = time.perf_counter()
        for left in range(records, 0, -batch):
            writer.write(whole[: min(batch, left)])
        produce_seconds = time.perf_counter() - started
        items = partitions_of(session, topic)
        reader = TopicReader(
            session, offsets_at(session, items, EARLIEST), offsets_at(session, items, LATEST)
        )
        started = time.perf_counter()
        consumed = sum(1 for _ in reader.records())
        consume_seconds = time.perf_counter() - started
        latencies = []
        for _ in range(round_trips):
            started = time.perf_counter()
            writer.write(whole[:1])
            latencies.append((time.perf_counter() - started) * 1000)
    finally:
        doomed = DeleteTopicsRequest(topics=[Doomed(name=topic)], timeout_ms=session.timeout_ms)
        session.call(DeleteTopicsResponse, doomed, Controller(), versions=Versions(6))
    latencies.sort()
    rows = [
        _row("produce", records, size, produce_seconds),
        _row("consume", consumed, size, consume_seconds),
    ]
    quantiles = {
        f"p{percent}_ms": round(latencies[len(latencies) * percent // 101], 3)
        for percent in (50, 95, 99)
    }
    if session.json:
        print_json({"throughput": rows, "round_trip": quantiles})
        return
    print_rows(rows, ["what", "records", "seconds", "records_per_second", "mib_per_second"])
    latency = ", ".join(f"{name.partition('_')[0]} {value} ms" for name, value in quantiles.items())
    note(f"Latency of one acknowledged record: {latency}.")


def _row(what: str, records: int, size: int, seconds: float) -> dict[str, Cell]:
    seconds = max(seconds, 1e-9)
    return {
        "what": what,
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds),
        "mib_per_second": round(records * size / seconds / (1 << 20), 1),
    }
