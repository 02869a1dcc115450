"""The demo: a broker, a standard client, a consumer group and a Spark job on real data, checked.

    make demo

All its files are below .cache/demo and are removed at the end, also after Ctrl-C; no process
remains. With --bootstrap it uses a running broker.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from demo_records import (
    RECORDS_MIN,
    PackageTotals,
    TextRecord,
    digest,
    text_records,
    totals,
    update,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ottla.cli.zookeeper_server import free_port

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "python-source"
PARTITIONS = 4
GROUP = "demo-readers"
# Each step takes seconds; after this timeout the demo fails.
STEP_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15

console = Console(highlight=False)


class DemoError(Exception):
    """Ends the demo with a sentence."""


def fail(sentence: str) -> NoReturn:
    raise DemoError(sentence)


def progress(description: str) -> Progress:
    return Progress(
        TextColumn(f"[bold]{description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


# --- processes -------------------------------------------------------------------------------


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def stop_group(process: subprocess.Popen[str]) -> None:
    """Stops a process and its children: SIGTERM first, SIGKILL after the timeout.

    Each process leads its own process group, so no other process is in that group.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            process.poll()
            if not group_is_alive(process.pid):
                return
            time.sleep(0.05)


@contextmanager
def started(
    command: list[str], log: Path, *, pipe: bool = False, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A child in its own process group: Ctrl-C reaches this process only, which stops the child.

    Its output goes to `log`; with `pipe` only what it writes to standard error does.
    """
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else errors,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # A second Ctrl-C does not interrupt the cleanup.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            stop_group(process)
            signal.signal(signal.SIGINT, before)
            if process.stdout is not None:
                process.stdout.close()


def find_java() -> str:
    """The first step: without Java no process is started."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "java.py")], stdout=subprocess.PIPE, text=True
    )
    if found.returncode != 0:
        raise SystemExit(found.returncode)  # tools/java.py has printed the reason
    return found.stdout.strip()


@contextmanager
def started_broker(work: Path) -> Iterator[str]:
    """`ottla start` with its own data directory on a free port; yields its address."""
    port = free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(work / "data"),
        "group.initial.rebalance.delay.ms": "0",  # no other member joins
    }
    command = [sys.executable, "-m", "ottla.cli.main", "start"]
    for name, value in settings.items():
        command += ["--override", f"{name}={value}"]
    log = work / "broker.log"
    with started(command, log) as process:
        deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
        while not is_listening("127.0.0.1", port):
            if process.poll() is not None or time.monotonic() > deadline:
                fail(f"the broker did not start:\n{tail(log)}")
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"


def is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


# --- the steps -------------------------------------------------------------------------------


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    for future in admin.create_topics([topic], request_timeout=30).values():
        try:
            future.result()
        except KafkaException as error:
            fail(f"the topic {TOPIC} could not be created: {error.args[0].str()}")


def write(bootstrap: str, records: list[TextRecord]) -> None:
    """Writes every record with the idempotent producer and waits for every acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "delivery.timeout.ms": STEP_TIMEOUT_SECONDS * 1000,
            "queue.buffering.max.messages": 50_000,
            "log_level": 3,  # errors; that a coordinator is still loading is none
        }
    )
    acknowledged = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            fail(f"a record was not accepted: {error.str()}")
        acknowledged += 1

    with progress("confluent-kafka writes") as bar:
        task = bar.add_task("", total=len(records))
        for record in records:
            while True:
                try:
                    producer.produce(
                        TOPIC,
                        record.value,
                        record.key,
                        headers=record.headers,
                        callback=on_delivery,
                    )
                except BufferError:  # the client's queue is full: let it send
                    producer.poll(0.1)
                    bar.update(task, completed=acknowledged)
                else:
                    break
            producer.poll(0)
        deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
        while producer.flush(0.2) and time.monotonic() < deadline:
            bar.update(task, completed=acknowledged)
        bar.update(task, completed=acknowledged)
    if acknowledged != len(records):
        fail(f"only {acknowledged} of {len(records)} records were acknowledged in time")


def open_member(bootstrap: str) -> Consumer:
    """A paused member: it reads when all members have their assignments."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    def on_assign(member: Consumer, partitions: list[TopicPartition]) -> None:
        member.assign(partitions)
        member.pause(partitions)

    consumer.subscribe([TOPIC], on_assign=on_assign)
    return consumer


def wait_for_assignments(members: list[Consumer], deadline: float) -> None:
    while True:
        for member in members:
            member.poll(0.1)
        counts = [len(member.assignment()) for member in members]
        if all(counts) and sum(counts) == PARTITIONS:
            return
        if time.monotonic() > deadline:
            fail(f"the group did not assign its {PARTITIONS} partitions in time: {counts}")


def read_back(bootstrap: str, records: list[TextRecord]) -> list[int]:
    """Two members of one group read everything and commit; the number of records of each.

    Fails unless every record of every key was read, unchanged and in order.
    """
    running: dict[bytes, hashlib.blake2b] = {}
    deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
    with ExitStack() as stack, progress("a consumer group reads back") as bar:
        task = bar.add_task("", total=len(records))
        members = [open_member(bootstrap) for _ in range(2)]
        for member in members:
            stack.callback(member.close)
        wait_for_assignments(members, deadline)
        for member in members:
            member.resume(member.assignment())
        counts = [0] * len(members)
        while sum(counts) < len(records) and time.monotonic() < deadline:
            for index, member in enumerate(members):
                for message in member.consume(5000, 0.05):
                    if message.error() is not None:
                        fail(f"the consumer group failed: {message.error().str()}")
                    hashed = running.setdefault(message.key(), hashlib.blake2b(digest_size=16))
                    update(hashed, message.value(), message.headers() or [])
                    counts[index] += 1
            bar.update(task, completed=sum(counts))
        for member in members:
            member.commit(asynchronous=False)
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        committed = sum(part.offset for part in members[0].committed(partitions, 30))
    if {key: hashed.hexdigest() for key, hashed in running.items()} != digest(records):
        fail("what the group read is not what was written")
    if committed != len(records):
        fail(f"the group committed {committed} records in all, {len(records)} were written")
    return counts


def run_spark(bootstrap: str, work: Path, java_home: str) -> dict[str, Any]:
    """The Spark job in its own process, with which all of Spark's processes end."""
    log = work / "spark.log"
    script = str(ROOT / "scripts" / "demo_spark.py")
    command = [sys.executable, script, bootstrap, TOPIC, str(work / "spark")]
    with (
        started(command, log, pipe=True, JAVA_HOME=java_home) as process,
        console.status("[bold]Spark starts, reads the topic and aggregates it"),
    ):
        try:
            output, _ = process.communicate(timeout=STEP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            output = ""
    lines = output.strip().splitlines()
    if not lines:
        fail(f"the Spark job failed:\n{tail(log)}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])


def check(result: dict[str, Any], records: list[TextRecord]) -> dict[str, PackageTotals]:
    found = {name: PackageTotals(*row) for name, row in result["packages"].items()}
    expected = totals(records)
    if found != expected:
        wrong = sorted(
            name for name in {*found, *expected} if found.get(name) != expected.get(name)
        )
        fail(f"the Spark job counted wrong for {len(wrong)} packages, such as {wrong[0]}")
    return found


# --- the demo --------------------------------------------------------------------------------


def show(found: dict[str, PackageTotals], timings: list[tuple[str, float, str]]) -> None:
    table = Table(title="Python's standard library, by package")
    for column in ("package", "lines", "modules", "bytes", "longest line"):
        table.add_column(column, justify="left" if column == "package" else "right")
    for name, row in sorted(found.items(), key=lambda item: -item[1].lines)[:10]:
        table.add_row(name, *(f"{number:,}" for number in row))
    console.print(table)
    for what, seconds, remark in timings:
        console.print(f"  {what:<34} {seconds:6.2f} s   {remark}", soft_wrap=True)


def run(work: Path, bootstrap: str | None) -> None:
    java_home = find_java()
    begun = time.perf_counter()
    records = text_records()
    if len(records) < RECORDS_MIN:
        fail(
            f"this Python's standard library has only {len(records)} lines of source, "
            f"the demo needs {RECORDS_MIN}; on Debian and Ubuntu install libpython3-stdlib"
        )
    timings: list[tuple[str, float, str]] = []

    def timed(what: str, step: Callable[[], Any], remark: str = "") -> Any:
        start = time.perf_counter()
        result = step()
        seconds = time.perf_counter() - start
        timings.append((what, seconds, remark or f"{len(records) / seconds:,.0f} records/s"))
        return result

    console.print(f"{len(records):,} lines of text with keys and headers")
    with ExitStack() as stack:
        if bootstrap is None:
            broker = started_broker(work)
            bootstrap = timed("ottla start", lambda: stack.enter_context(broker), "ready")
        console.print(f"broker at {bootstrap}")
        address: str = bootstrap
        timed("topic created", lambda: create_topic(address), f"{PARTITIONS} partitions")
        timed("written by confluent-kafka", lambda: write(address, records))
        counts = timed("read back by a consumer group", lambda: read_back(address, records))
        console.print(f"the group's two members read {counts[0]:,} + {counts[1]:,}, all as written")
        result = run_spark(address, work, java_home)
        timings.append(("Spark started", result["start_seconds"], ""))
        rate = f"{len(records) / result['job_seconds']:,.0f} records/s with Spark's warm-up"
        timings.append(("read and aggregated by Spark", result["job_seconds"], rate))
        found = check(result, records)
    timings.append(("total", time.perf_counter() - begun, ""))
    show(found, timings)
    console.print("[green]The result is correct: equal to the count without broker and Spark.")


def main() -> int:
    parser = argparse.ArgumentParser(description="Broker, client, group and Spark job, checked.")
    parser.add_argument("--bootstrap", help="use this broker instead of starting one")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    work = ROOT / ".cache" / "demo" / str(os.getpid())
    work.mkdir(parents=True)
    try:
        run(work, chosen.bootstrap)
    except DemoError as error:
        console.print(f"[red]The demo failed:[/red] {error}", markup=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with suppress(OSError):  # another demo may be running
            work.parent.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
