"""`ottla consume --zookeeper`: a member of a group of Kafka 0.8 on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ottla.cli.output import note
from ottla.cli.session import Session
from ottla.protocol.records.record import Record


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
    from ottla.cli.zookeeper_consumer import ZookeeperConsumer
    from ottla.cli.zookeeper_log import SessionLog, bootstrap_of
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
