"""The high-level consumer of Kafka 0.8: its group is in the znode tree, without a coordinator.

    /consumers/G/ids/C           (ephemeral) a member and its subscription
    /consumers/G/owners/T/P      (ephemeral) the owner of a partition
    /consumers/G/offsets/T/P     the next offset to read, as decimal text

Every member watches the others, the brokers and the partitions of its topics. After a change, each
member commits, releases its partitions, computes the same assignment and claims its partitions. If
a claim fails because the former owner still exists, the member retries the rebalance. Members of
this kind and the old Scala or Java consumer can be in one group.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ottla.cli.offsets import EARLIEST, LATEST, offsets_at
from ottla.cli.output import Failure, note
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session
from ottla.cli.zookeeper_tree import Tree
from ottla.protocol.java_order import string_hash
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.consumer")

REBALANCE_MAX_RETRIES = 4  # as rebalance.max.retries
REBALANCE_BACKOFF_SECONDS = 2.0  # as rebalance.backoff.ms
AUTO_COMMIT_SECONDS = 60.0  # as auto.commit.interval.ms
STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"
RANGE = "range"
ROUND_ROBIN = "roundrobin"


class Log(Protocol):
    """The source of records: `ottla.cli.zookeeper_consumer.SessionLog`, or a double."""

    def first_offset(self, partition: TopicPartition) -> int: ...

    def end_offset(self, partition: TopicPartition) -> int: ...

    def fetch(
        self, positions: dict[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """One round of fetching; advances `positions` with the records."""
        ...


class ZookeeperConsumer:
    """One member of a group, with one thread. Not thread-safe, except for the watches."""

    def __init__(
        self,
        tree: Tree,
        log: Log,
        group: str,
        topics: list[str],
        *,
        consumer_id: str | None = None,
        strategy: str = RANGE,
        from_beginning: bool = False,
        auto_commit_seconds: float | None = AUTO_COMMIT_SECONDS,
        max_retries: int = REBALANCE_MAX_RETRIES,
        backoff_seconds: float = REBALANCE_BACKOFF_SECONDS,
    ) -> None:
        """`from_beginning`: where to start without a committed offset (auto.offset.reset)."""
        self._tree = tree
        self._log = log
        self.group = group
        self.topics = topics
        self.consumer_id = consumer_id or _new_consumer_id(group)
        self._strategy = strategy
        self._from_beginning = from_beginning
        self._auto_commit_seconds = auto_commit_seconds
        self._max_retries = max_retries
        self._backoff_seconds = backoff_seconds
        self._changed = threading.Event()
        self._expired = threading.Event()
        self._next_commit = time.monotonic() + (auto_commit_seconds or 0)
        self.positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self.rebalances = 0

    # Start and close.

    def start(self) -> None:
        """Registers, sets watches, and claims partitions."""
        self._register()
        for path in (self._ids, "/brokers/ids", *map(_topic_path, self.topics)):
            self._tree.watch(path, self._changed.set)
        self._tree.on_new_session(self._expired.set)
        self.rebalance()

    def close(self) -> None:
        """Commits, releases the partitions and leaves the group."""
        self.commit()
        self._release()
        self._tree.delete(f"{self._ids}/{self.consumer_id}")

    def __enter__(self) -> ZookeeperConsumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _register(self) -> None:
        data = {
            "version": 1,
            "subscription": dict.fromkeys(self.topics, 1),
            "pattern": STATIC,
            "timestamp": str(time.time_ns() // 1_000_000),
        }
        path = f"{self._ids}/{self.consumer_id}"
        if not self._tree.claim(path, json.dumps(data).encode()):
            raise Failure(f"{path} exists: another member has this id.")

    # Reading.

    def poll(self) -> list[tuple[TopicPartition, Record]]:
        """The records of one round of fetches; rebalances and commits when due."""
        if self._expired.is_set():
            self._expired.clear()
            logger.warning("ZooKeeper session expired: %s rejoins", self.consumer_id)
            self.positions.clear()  # other members may own these partitions
            self._register()
            self.rebalance()
        elif self._changed.is_set():
            self.rebalance()
        if self._auto_commit_seconds is not None and time.monotonic() >= self._next_commit:
            self.commit()
        if not self.positions:
            self._changed.wait(0.2)  # nothing to read until a member leaves
            return []
        before = dict(self.positions)
        try:
            return list(self._log.fetch(self.positions))
        except BaseException:
            self.positions.update(before)  # what the caller does not get is read again
            raise

    def commit(self) -> None:
        """Stores the positions that have changed."""
        for partition, offset in self.positions.items():
            if self._committed.get(partition) != offset:
                self._tree.set(self._offset_path(partition), b"%d" % offset)
                self._committed[partition] = offset
        if self._auto_commit_seconds is not None:
            self._next_commit = time.monotonic() + self._auto_commit_seconds

    # Rebalance.

    def rebalance(self) -> None:
        """Releases all partitions and claims a new assignment; raises Failure after the retries."""
        self.commit()
        for _ in range(self._max_retries):
            # Cleared first: a later change needs another rebalance.
            self._changed.clear()
            self._release()
            if self._claim_assignment():
                self.rebalances += 1
                return
            # Ends early when a member releases a partition or leaves.
            self._changed.wait(self._backoff_seconds)
        raise Failure(
            f"{self.consumer_id} could not claim its partitions in {self._max_retries} tries: "
            "other members of the group do not release them."
        )

    def _claim_assignment(self) -> bool:
        partitions = {topic: self._partitions(topic) for topic in self.topics}
        try:
            owners = assign(self._strategy, self._threads(), partitions)
        except UnequalSubscriptions as problem:
            raise Failure(f"group {self.group}: {problem}.") from None
        me = f"{self.consumer_id}-0"
        mine = [partition for partition, owner in owners.items() if owner == me]
        claimed: list[TopicPartition] = []
        for partition in mine:
            if not self._tree.claim(self._owner_path(partition), me.encode()):
                for taken in claimed:
                    self._tree.delete(self._owner_path(taken))
                return False
            claimed.append(partition)
        # Only now: a former owner commits right before it releases its partition.
        self.positions.update({partition: self._start_of(partition) for partition in mine})
        self._committed.update(self.positions)  # stored again when they have changed
        return True

    def _release(self) -> None:
        for partition in list(self.positions):
            # After the session expired the node can belong to another member.
            path = self._owner_path(partition)
            if self._tree.get(path) == f"{self.consumer_id}-0".encode():
                self._tree.delete(path)
        self.positions.clear()
        self._committed.clear()

    def _threads(self) -> dict[str, list[str]]:
        """The threads of all members, by the topics of this member."""
        threads: dict[str, list[str]] = {topic: [] for topic in self.topics}
        for consumer_id in sorted(self._tree.children(self._ids)):
            data = self._tree.get(f"{self._ids}/{consumer_id}")
            if data is None:
                continue  # left meanwhile: the watch has fired
            for topic, count in _subscription(data, self.topics).items():
                threads[topic].extend(f"{consumer_id}-{index}" for index in range(count))
        return threads

    def _partitions(self, topic: str) -> list[int]:
        data = self._tree.get(_topic_path(topic))
        if data is None:
            return []
        try:
            return [int(number) for number in json.loads(data)["partitions"]]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise Failure(f"the partitions of {topic} in ZooKeeper are damaged.") from None

    def _start_of(self, partition: TopicPartition) -> int:
        first, end = self._log.first_offset(partition), self._log.end_offset(partition)
        data = self._tree.get(self._offset_path(partition))
        if data is not None:
            with suppress(ValueError):  # not a number: treated as not committed
                offset = int(data)
                if first <= offset <= end:
                    return offset
        return first if self._from_beginning else end

    # Paths.

    @property
    def _ids(self) -> str:
        return f"/consumers/{self.group}/ids"

    def _owner_path(self, partition: TopicPartition) -> str:
        return f"/consumers/{self.group}/owners/{partition.topic}/{partition.partition}"

    def _offset_path(self, partition: TopicPartition) -> str:
        return f"/consumers/{self.group}/offsets/{partition.topic}/{partition.partition}"


def _topic_path(topic: str) -> str:
    return f"/brokers/topics/{topic}"


def _new_consumer_id(group: str) -> str:
    """As in Kafka 0.8: group, host, milliseconds, eight random hexadecimal digits."""
    return f"{group}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"


def _subscription(data: bytes, topics: list[str]) -> dict[str, int]:
    """The number of threads of a member for each of `topics`; patterns are resolved."""
    try:
        parsed = json.loads(data)
        counts = {str(name): int(count) for name, count in parsed["subscription"].items()}
        pattern = parsed.get("pattern", STATIC)
    except (ValueError, KeyError, AttributeError, TypeError):
        return {}  # not a valid member; the others ignore it too
    if pattern == STATIC:
        return {topic: counts[topic] for topic in topics if topic in counts}
    found = {}
    for topic in topics:
        for expression, count in counts.items():
            matches = re.fullmatch(expression.replace(",", "|"), topic) is not None
            if matches == (pattern == WHITE_LIST):
                found[topic] = count
    return found


Threads = Mapping[str, Sequence[str]]
"""The ids of the threads that read each topic."""


class UnequalSubscriptions(ValueError):
    """Round-robin assigns all topics to all threads: every member has to subscribe to the same."""


def assign(
    strategy: str, threads: Threads, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """The owner thread of each partition, as every member of the group computes it."""
    if strategy == ROUND_ROBIN:
        return _round_robin(threads, partitions)
    return _range(threads, partitions)


def _range(threads: Threads, partitions: Mapping[str, Sequence[int]]) -> dict[TopicPartition, str]:
    """Topic by topic: each thread gets a range, the first ones one partition more."""
    owners = {}
    for topic, numbers in partitions.items():
        readers = sorted(threads.get(topic, ()))
        if not readers:
            continue
        each, more = divmod(len(numbers), len(readers))
        ordered = iter(sorted(numbers))
        for index, reader in enumerate(readers):
            for _ in range(each + (index < more)):
                owners[TopicPartition(topic, next(ordered))] = reader
    return owners


def _round_robin(
    threads: Threads, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """All partitions of all topics, in the order of their hashes, one to each thread in turn."""
    subscriptions = {tuple(sorted(readers)) for readers in threads.values()}
    if len(subscriptions) > 1:
        raise UnequalSubscriptions(
            "round-robin needs every member of the group to read the same topics with as many "
            "threads"
        )
    if not subscriptions:
        return {}
    (readers,) = subscriptions
    ordered = sorted(
        (TopicPartition(topic, n) for topic, numbers in partitions.items() for n in numbers),
        # The text of a partition in Kafka 0.8.
        key=lambda item: string_hash(f"[{item.topic},{item.partition}]"),
    )
    return {item: readers[index % len(readers)] for index, item in enumerate(ordered)}


def bootstrap_of(tree: Tree) -> str:
    """The plaintext listeners of all registered brokers; a damaged registration is left out."""
    addresses = []
    ids = filter(str.isdecimal, tree.children("/brokers/ids"))
    for broker_id in sorted(ids, key=int):
        data = tree.get(f"/brokers/ids/{broker_id}")
        if data is None:
            continue
        try:
            address = _address(json.loads(data))
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            note(f"ottla: the registration of broker {broker_id} in ZooKeeper is damaged.")
            continue
        if address:
            addresses.append(address)
    if not addresses:
        raise Failure("no broker with a plaintext listener is registered in this ZooKeeper.")
    return ",".join(addresses)


def _address(registration: Any) -> str | None:
    plain = [
        endpoint.partition("://")[2]
        for endpoint in registration.get("endpoints", ())
        if endpoint.startswith("PLAINTEXT://")
    ]
    if plain:
        return str(plain[0])
    if registration.get("host"):
        return f"{registration['host']}:{registration['port']}"
    return None


class SessionLog:
    """The logs of a cluster through the client of the command."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def first_offset(self, partition: TopicPartition) -> int:
        return offsets_at(self._session, [partition], EARLIEST)[partition]

    def end_offset(self, partition: TopicPartition) -> int:
        return offsets_at(self._session, [partition], LATEST)[partition]

    def fetch(
        self, positions: dict[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, Record]]:
        # The reader advances the positions in place, so that the consumer has them.
        return TopicReader(self._session, positions, None).one_round()


def consume_in_group(
    session: Session,
    zookeeper: str,
    group: str,
    topic: str,
    show: Callable[[str, int, Record], bytes],
    limit: int | None,
    from_beginning: bool,
) -> None:
    """Reads until Ctrl-C or the limit, from the brokers that are registered in the tree."""
    # The import of kazoo is slow, and few commands need it.
    from ottla.cli.zookeeper_tree import KazooTree

    tree = KazooTree(zookeeper)
    out = sys.stdout.buffer
    written = 0
    try:
        session.bootstrap = bootstrap_of(tree)
        with ZookeeperConsumer(
            tree, SessionLog(session), group, [topic], from_beginning=from_beginning
        ) as consumer:
            note(f"{consumer.consumer_id} reads {sorted(p.partition for p in consumer.positions)}")
            while written != limit:
                records = consumer.poll()
                wanted = len(records) if limit is None else limit - written
                printed = 0
                try:
                    try:
                        for partition, record in records[:wanted]:
                            out.write(show(partition.topic, partition.partition, record))
                            printed += 1
                    finally:
                        out.flush()
                except OSError:
                    printed = 0
                    raise
                finally:
                    # The consumer commits when it is closed, also after Ctrl-C.
                    for partition, record in reversed(records[printed:]):
                        consumer.positions[partition] = record.offset  # not printed: read again
                written += printed
    except KeyboardInterrupt:
        note("")
    finally:
        tree.close()
    out.flush()
