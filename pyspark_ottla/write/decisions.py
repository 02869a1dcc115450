"""What names a write, and the decision about one batch of it, as text that brokers store.

A decision is stored as the metadata of committed offsets, each of which brokers limit to
`offset.metadata.max.bytes` (4096 by default). It is therefore compressed, and divided over several
groups if it is longer than that.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ottla.protocol.topics import TopicPartition

# Below Kafka's default of offset.metadata.max.bytes, 4096.
CHUNK_CHARACTERS_MAX = 4000
# A decision of some hundred thousand tasks; what claims more is not one of ours.
DECISION_BYTES_MAX = 16 << 20

_HEAD = re.compile(r"1:([0-9a-f]+):(\d+)/(\d+):")
_ID_TAIL = re.compile(r"-([0-9a-f]{12})-(\d{1,9})")


class Target(NamedTuple):
    """The topic that a write goes to. An id that the brokers do not tell is empty, and equal to
    any (topic ids: before Kafka 2.8)."""

    cluster_id: str
    topic: str
    topic_id: str

    def is_other_than(self, other: Target) -> bool:
        return any(mine and its and mine != its for mine, its in zip(self, other, strict=True))


class Write(NamedTuple):
    """Which write this is.

    `name` stays the same for all batches of a query (or of a `writeId`); it names the group of the
    decisions, and transactional ids begin with it. `batch_id` is the number of the batch. `job`
    is another one each time Spark executes the write; `run` each time it starts the query.
    `is_numbered` is false for a batch job, which has one batch only. `query` is the id of the
    streaming query, as far as Spark tells it.
    """

    name: str
    batch_id: int
    job: str
    run: str = ""
    is_numbered: bool = True
    query: str = ""

    @property
    def driver_id(self) -> str:
        """The transactional id under which the driver writes decisions."""
        return f"{self.name}-driver"

    def describe(self) -> str:
        return f"batch {self.batch_id} of {self.name}" if self.is_numbered else self.name


class Prepared(NamedTuple):
    """A transaction that a task has flushed and left open."""

    transactional_id: str
    producer_id: int
    epoch: int


class TaskResult(NamedTuple):
    """What a task reports to the driver.

    `last_offsets` has an entry for each partition that was written to. `prepared` is the
    transaction that waits for the driver's decision, and `target` the topic as the task found it.
    `dropped`: the batch was decided before, and the rows were not written.
    """

    rows: int
    bytes_sent: int
    last_offsets: dict[TopicPartition, int]
    prepared: Prepared | None = None
    dropped: bool = False
    target: Target | None = None


class Decision(NamedTuple):
    """That the transactions of one batch are to be committed, all of them and no others.

    `target` is where the batch was written, and `plan` a digest of Spark's journal entry for it;
    None and empty in decisions of earlier versions and where they are not known. `query` is that of
    the write.
    """

    batch_id: int
    job: str
    run: str
    rows: int
    transactions: tuple[Prepared, ...]
    target: Target | None = None
    plan: str = ""
    query: str = ""


def transactional_id(name: str, host: str, slot: int) -> str:
    """The id of a task's transaction: `host` are twelve hexadecimal digits."""
    return f"{name}-{host}-{slot}"


def belongs_to(name: str, identifier: str) -> bool:
    """Whether this is the transactional id of a task of that write."""
    return identifier.startswith(name) and _ID_TAIL.fullmatch(identifier[len(name) :]) is not None


def chunk_groups(name: str, count: int) -> list[str]:
    """The groups that hold a decision in `count` chunks; the first one is that of the write."""
    return [name, *(f"{name}.{number}" for number in range(1, count))]


def encode_decision(name: str, decision: Decision) -> list[str]:
    """The texts to store, each in a group of its own."""
    hosts: dict[str, list[tuple[int, int, int]]] = {}
    for transaction in decision.transactions:
        match = _ID_TAIL.fullmatch(transaction.transactional_id[len(name) :])
        assert match is not None, transaction
        row = (int(match[2]), transaction.producer_id, transaction.epoch)
        hosts.setdefault(match[1], []).append(row)
    # Slots and producer ids mostly count up by one: their differences compress to almost nothing.
    columns = {
        host: [_differences(column) for column in zip(*sorted(rows), strict=True)]
        for host, rows in sorted(hosts.items())
    }
    origin = [decision.target, decision.plan, decision.query]
    body = json.dumps([decision.run, decision.rows, columns, origin], separators=(",", ":"))
    text = base64.b85encode(zlib.compress(body.encode(), 9)).decode()
    step = CHUNK_CHARACTERS_MAX - len(f"1:{decision.job}:9999/9999:")
    chunks = [text[start : start + step] for start in range(0, len(text), step)]
    return [
        f"1:{decision.job}:{number}/{len(chunks)}:{chunk}" for number, chunk in enumerate(chunks)
    ]


class Chunk(NamedTuple):
    """One stored text: chunk `number` of `total` of the decision that `job` made."""

    job: str
    number: int
    total: int
    text: str


def parse_chunk(stored: str) -> Chunk | None:
    """None for what is not a chunk of a decision."""
    match = _HEAD.match(stored)
    if match is None:
        return None
    return Chunk(match[1], int(match[2]), int(match[3]), stored[match.end() :])


def decode_decision(name: str, batch_id: int, chunks: Sequence[Chunk]) -> Decision | None:
    """The decision that was stored in these chunks; None for what is not one.

    Also reads the form of earlier versions, which is without target, plan and query.
    """
    try:
        packed = base64.b85decode("".join(chunk.text for chunk in chunks))
        body = zlib.decompressobj().decompress(packed, DECISION_BYTES_MAX)
        run, rows, hosts, *later = json.loads(body)
        target, plan, query = later[0] if later else (None, "", "")
        transactions = [
            Prepared(transactional_id(name, host, slot), producer_id, epoch)
            for host, columns in hosts.items()
            for slot, producer_id, epoch in zip(*map(_sums, columns), strict=True)
        ]
        return Decision(
            batch_id,
            chunks[0].job,
            str(run),
            int(rows),
            tuple(transactions),
            None if target is None else Target(*map(str, target)),
            str(plan),
            str(query),
        )
    except (ValueError, TypeError, AttributeError, zlib.error):
        return None


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for value, before in zip(values, (0, *values[:-1]), strict=True)]


def _sums(values: Sequence[int]) -> list[int]:
    found, total = [], 0
    for value in values:
        total += value
        found.append(total)
    return found
