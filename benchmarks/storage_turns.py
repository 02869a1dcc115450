"""Work of a log that could hold the event loop: small transactions, and truncations.

A part of `python -m benchmarks.bench_storage`. The longest turn is what other requests wait for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.storage_timing import MIB, NOW_MS, now, opened, processor, say
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin


def transactions(log: Log, count: int, producers: int, aborted: Callable[[int], bool]) -> None:
    """Transactions with one record of 100 bytes, of each producer in turn."""
    record = [(NOW_MS, b"k", bytes(100), [])]
    for number in range(count):
        producer: dict[str, int] = {"producer_id": number % producers, "producer_epoch": 0}
        sequence = number // producers
        data = build_batch(record, base_sequence=sequence, transactional=True, **producer)
        log.append(bytearray(data), leader_epoch=0, now_ms=NOW_MS)
        marker = end_transaction_marker(
            committed=not aborted(number), coordinator_epoch=0, timestamp_ms=NOW_MS, **producer
        )
        origin = AppendOrigin.COORDINATOR
        log.append(bytearray(marker), leader_epoch=0, now_ms=NOW_MS, origin=origin)
    log.update_high_watermark(log.log_end_offset)


def bench_transactions(directory: Path, scale: int) -> None:
    manager = opened(directory / "transactions")
    for partition, producers in enumerate((1, 2, 50)):
        log = manager.get_or_create("leader", partition, now_ms=NOW_MS)
        transactions(log, 5_000, producers, lambda number: number == 100)
        part = log.read(0, MIB, up_to=log.log_end_offset).slice
        assert part is not None
        content = part.read()
        follower = manager.get_or_create("follower", partition, now_ms=NOW_MS)
        start = now()
        follower.append_as_follower(content, now_ms=NOW_MS)
        taken = now() - start
        name = f"follower, 1 MiB of {producers} producer(s)"
        say(name, taken.wall * 1e3, "ms", processor(taken.processor))
    for count in (1_000, 100_000 // scale):
        log = manager.get_or_create("aborted", count, now_ms=NOW_MS)
        transactions(log, count, 1, lambda _: True)
        start = now()
        for _ in range(10):
            log.read(log.log_end_offset - 1, MIB, up_to=log.last_stable_offset, read_committed=True)
        taken = now() - start
        each, note = taken.wall / 10, processor(taken.processor / 10, "us")
        say(f"read_committed behind {count:,} aborted", each * 1e6, "us each", note)


def truncated_in_turns(log: Log, offset: int) -> Iterator[None]:
    """As a follower does it."""
    for part in log.truncator.parts(offset):
        for work in log.truncator.prepare(part):
            if work is not None:
                work()
            yield
        log.truncator.truncate_to(part)
        yield


def longest_turn(steps: Iterator[None]) -> tuple[float, float]:
    """Milliseconds by the clock, of the longest turn and of all.

    Without the full collections of Python: they may fall into any turn, and what one takes depends
    on all that is in memory.
    """
    longest = total = 0.0
    ended = False
    gc.disable()
    while not ended:
        start = now()
        ended = next(steps, steps) is steps
        taken = (now() - start).wall * 1e3
        longest, total = max(longest, taken), total + taken
    gc.enable()
    return longest, total


def bench_truncation(directory: Path, scale: int) -> None:
    manager = opened(directory / "truncation")
    record = [(NOW_MS, None, bytes(100), [])]
    segments = 1_000 // scale
    log = manager.get_or_create("segments", 0, now_ms=NOW_MS)
    for _ in range(segments):
        log.append(bytearray(build_batch(record)), leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
    turn, total = longest_turn(truncated_in_turns(log, 1))
    say(f"truncation of {segments:,} segments: turn", turn, "ms", f"{total:.1f} ms in all")
    producers = 100_000 // scale
    log = manager.get_or_create("producers", 0, now_ms=NOW_MS)
    for producer in range(producers):
        data = build_batch(record, base_sequence=0, producer_id=producer, producer_epoch=0)
        log.append(bytearray(data), leader_epoch=0, now_ms=NOW_MS)
    start = now()
    log.roll(NOW_MS)
    taken = (now() - start).wall * 1e3
    say(f"roll with {producers:,} producers", taken, "ms")
    log.append(bytearray(build_batch(record)), leader_epoch=0, now_ms=NOW_MS)
    turn, total = longest_turn(truncated_in_turns(log, producers))
    say(f"truncation with {producers:,} producers: turn", turn, "ms", f"{total:.1f} ms in all")
