"""Stray logs: logs on the disks that are not replicas of this broker any more.

While a broker is down its partitions may be reassigned, and a topic may be removed from ZooKeeper
by hand and created again with the same name. The controller sends no StopReplica for those when the
broker is back, so the broker looks for them once, before it handles requests of the controller. A
stray log is renamed with the suffix `-stray` and kept, as it may be the only copy of its records.
(Kafka does this in KRaft mode; in ZooKeeper mode it leaves such a log where it is, and refuses the
new topic of that name.)
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


async def rename_stray_logs(logs: LogManager, store: ZnodeStore, broker_id: int) -> int:
    """Renames the logs that are not assigned to this broker; returns their number.

    Call it after the registration and before the first request of the controller: a session reads
    at least everything that was written before its own last write.
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
            logger.error("Failed to check for stray logs of topic %s: %s", topic, error)
    count = 0
    for log in logs.logs():
        reason = _stray_reason(log, states[log.topic], broker_id) if log.topic in states else ""
        if not reason:
            continue
        try:
            logs.delete_async(log.topic, log.partition, stray=True)
        except StorageError as error:
            logger.error("Failed to rename stray log %s (%s): %s", log.name, reason, error)
            continue
        logger.warning("Renamed stray log %s to %s: %s", log.name, log.path, reason)
        count += 1
    return count


def _stray_reason(log: Log, state: TopicState | None, broker_id: int) -> str:
    """Why the log is a stray; "" when it is not."""
    if state is None:
        # Without an id it may belong to a topic that is going to be created for its sake.
        return "" if log.topic_id is None else "the topic does not exist any more"
    if None not in (log.topic_id, state.topic_id) and log.topic_id != state.topic_id:
        return "the topic was deleted and created again"
    assignment = state.assignments.get(log.partition)
    if assignment is None or broker_id not in assignment.replicas:
        return "the partition is not assigned to this broker any more"
    return ""
