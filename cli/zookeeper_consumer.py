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
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from ottla.cli.output import Failure
from ottla.cli.zookeeper_assignment import RANGE, UnequalSubscriptions, assign
from ottla.cli.zookeeper_tree import Tree
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.consumer")

REBALANCE_MAX_RETRIES = 4  # as rebalance.max.retries
REBALANCE_BACKOFF_SECONDS = 2.0  # as rebalance.backoff.ms
AUTO_COMMIT_SECONDS = 60.0  # as auto.commit.interval.ms
STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"


class Log(Protocol):
    """The source of records: `ottla.cli.zookeeper_log.SessionLog`, or a double."""

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
