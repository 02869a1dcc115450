"""The logs that a ZooKeeper consumer reads, from the brokers that the tree registers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ottla.cli.offsets import EARLIEST, LATEST, offsets_at
from ottla.cli.output import Failure, note
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session
from ottla.cli.zookeeper_tree import Tree
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition


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
