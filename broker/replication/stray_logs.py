"""Logs on the disks that are not replicas of this broker any more (strays).

While a broker is away its partitions may be given to others, and a topic may be taken out of the
tree by hand and made again under its name. Nobody tells the broker when it is back, so it looks for
itself, once, before it takes orders. What it finds is renamed and kept: it may be the only copy of
something, and a name that ends with `-stray` is in nobody's way. (Kafka does this in KRaft mode; in
ZooKeeper mode it leaves such a log where it is, and refuses the new topic of that name.)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.controller.tree import znodes
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.controller.model import TopicState
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.broker")


async def set_strays_aside(logs: LogManager, store: ZnodeStore, broker_id: int) -> int:
    """Renames the logs that the tree does not give to this broker; their number.

    To be called when this broker has registered and not been told anything yet: a session sees at
    least all that was decided before its own last write.
    """
    topics = list(dict.fromkeys(log.topic for log in logs.logs()))
    if not topics:
        return 0
    nodes = await store.get_many([znodes.topic_path(topic) for topic in topics])
    states: dict[str, TopicState | None] = {}
    for topic, node in zip(topics, nodes, strict=True):
        try:
            states[topic] = None if node is None else znodes.decode_topic(topic, node[0])
        except MalformedZnode as error:
            logger.error("whose the logs of %s are cannot be told: %s", topic, error)
    count = 0
    for log in logs.logs():
        reason = _why(log, states[log.topic], broker_id) if log.topic in states else ""
        if not reason:
            continue
        try:
            logs.delete_async(log.topic, log.partition, stray=True)
        except StorageError as error:
            logger.error("%s: %s, but it cannot be renamed: %s", log.name, reason, error)
            continue
        logger.warning("%s: %s; its log is kept as %s", log.name, reason, log.path)
        count += 1
    return count


def _why(log: Log, state: TopicState | None, broker_id: int) -> str:
    """What makes the log a stray; "" when it is none."""
    if state is None:
        # Without an id it may be of a topic that is yet to be made again for its sake.
        return "" if log.topic_id is None else "there is no such topic any more"
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        return "the topic is another one of the same name"
    assignment = state.assignments.get(log.partition)
    if assignment is None or broker_id not in assignment.replicas:
        return "it has been given to other brokers"
    return ""
