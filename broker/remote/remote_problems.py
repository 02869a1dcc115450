"""What fails in remote storage now: one log line when it begins and one when it ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.remote.segments import TopicIdPartition

logger = logging.getLogger("ottla.remote")


class RemoteProblems:
    """The partitions whose last run failed, by task ("copy", "expiration", "deletion"). Loop only.

    A store that is away fails for all partitions: only the first of them is logged.
    """

    def __init__(self) -> None:
        self._failed: dict[str, dict[TopicIdPartition, str]] = {}

    def failed(self, partition: TopicIdPartition, task: str, error: Exception) -> None:
        """The run failed, and is retried."""
        failed = self._failed.setdefault(task, {})
        text = str(error) or type(error).__name__
        if not failed:
            logger.error(
                "Remote storage: The %s task of %s-%d failed, retrying; failures of other"
                " partitions are not logged until it works again: %s",
                task,
                partition.topic,
                partition.partition,
                text,
            )
        failed[partition] = text

    def worked(self, partition: TopicIdPartition, task: str) -> None:
        """The run ended without an error."""
        failed = self._failed.get(task)
        if failed and failed.pop(partition, None) is not None and not failed:
            logger.info("Remote storage: The %s tasks work again", task)

    def forget(self, partition: TopicIdPartition) -> None:
        """The partition has left this broker."""
        for failed in self._failed.values():
            failed.pop(partition, None)

    def count(self, task: str) -> int:
        """The partitions whose last run of this task failed."""
        return len(self._failed.get(task, ()))

    def first(self) -> tuple[str, str, str] | None:
        """(task, partition, error) of a failure that lasts, or None."""
        for task, failed in self._failed.items():
            for partition, text in failed.items():
                return task, f"{partition.topic}-{partition.partition}", text
        return None
