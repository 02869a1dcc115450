"""Whether a write is the one that a decision is about.

A decision is found by the name of the write, which is in the checkpoint of a query or in `writeId`.
Both can be copied, restored from a backup or used twice, and rows that are dropped as a repetition
are lost if they are not one. A decision therefore also holds where the batch was written and a
digest of Spark's journal entry for it; what differs is an error that names `writeId`.
"""

from __future__ import annotations

import hashlib
import os
from urllib.parse import unquote, urlsplit

from pyspark_ottla import errors
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.write.decisions import Decision, Target, Write

# A journal entry has a line for each source, with the offsets of all of its partitions.
JOURNAL_BYTES_MAX = 64 << 20


def target_of(cluster: KafkaCluster, topic: str) -> Target:
    """The topic with the ids that its brokers tell; raises ConnectorError if it is not there."""
    found = cluster.topic_to_write(topic)
    return Target(found.cluster_id, topic, found.topic_id)


def plan_digest(checkpoint: str | None, batch_id: int) -> str:
    """A digest of Spark's journal entry for the batch: what it reads, and when it was planned.

    Empty if the checkpoint is not on a file system of this machine. A batch that is repeated after
    a crash has the same entry; one that was planned again, from a copy or a backup, has another.
    """
    if not checkpoint:
        return ""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file") or parts.netloc:
        return ""
    path = unquote(parts.path) if parts.scheme else checkpoint
    try:
        with open(os.path.join(path, "offsets", str(batch_id)), "rb") as file:
            entry = file.read(JOURNAL_BYTES_MAX)
    except OSError:
        return ""
    return hashlib.sha256(entry).hexdigest()[:16]


def check_target(decision: Decision | None, write: Write, target: Target) -> None:
    """Raises ConnectorError if what was decided under this name went to another topic."""
    before = None if decision is None else decision.target
    if decision is None or before is None or not before.is_other_than(target):
        return
    if before.topic != target.topic:
        what = f"to the topic {before.topic}, not to {target.topic}"
    elif before.cluster_id and target.cluster_id and before.cluster_id != target.cluster_id:
        what = (
            f"to the topic {target.topic} of the cluster {before.cluster_id}, "
            f"not of {target.cluster_id}"
        )
    else:
        what = (
            f"to an earlier topic {target.topic} (id {before.topic_id}), which was deleted and "
            f"created again since (id {target.topic_id})"
        )
    last = f"batch {decision.batch_id}" if write.is_numbered else "the rows"
    raise ConnectorError(
        errors.WRITE_ID_NEEDED,
        f"{write.describe()} is not written: {last} of this name went {what}",
        "A write to another topic, as with a copied checkpoint, needs a name of its own: set the "
        "option writeId to a new one, the same in every batch",
    )


def write_again(decision: Decision | None, write: Write) -> bool:
    """Whether tasks of this batch write their rows; false if it is decided already.

    Raises ConnectorError for a batch that looks like an earlier one and is another.
    """
    if decision is None or decision.batch_id < write.batch_id:
        return True
    if decision.batch_id > write.batch_id:
        raise ConnectorError(
            errors.BATCH_NUMBERS_RESTARTED,
            f"This is {write.describe()}, but batch {decision.batch_id} has been written already",
            "The checkpoint was reset or is an old copy. Use a new checkpoint (for batchId: a new "
            f"writeId), or delete the group {write.name} to write under these numbers again",
        )
    is_same_run = write.is_numbered and write.run != "" and write.run == decision.run
    if is_same_run and write.job != decision.job:
        raise ConnectorError(
            errors.WRITE_ID_NEEDED,
            f"This is the second write to the same topic in {write.describe()}",
            "Give the second one an option writeId, the same in every batch, and leave the first "
            "one as it is, or its rows are written again. If this is the same write, repeated "
            "after a failure, let the batch fail: the query completes it when it is started again",
        )
    return False


def check_repetition(decision: Decision, write: Write, plan: str, rows: int) -> None:
    """Raises ConnectorError if the batch has the number of the decided one and is another.

    Without a digest on both sides only the number of rows tells them apart.
    """
    if write.query and decision.query and write.query != decision.query:
        raise ConnectorError(
            errors.WRITE_ID_NEEDED,
            f"{write.describe()} was written by the query {decision.query}, and this is the query "
            f"{write.query}",
            "Give each query an option writeId of its own",
        )
    if plan and decision.plan:
        if plan == decision.plan:
            return
        difference = "that was planned at another time"
    elif rows == decision.rows:
        return
    else:
        difference = f"with {decision.rows} rows, and this one has {rows}"
    if not write.is_numbered:
        raise ConnectorError(
            errors.WRITE_ID_REUSED,
            f"{decision.rows} rows have been written under this writeId ({write.name}), "
            f"and this job has {rows}",
            "A writeId is for one write: repeat that one, or use another writeId",
        )
    raise ConnectorError(
        errors.BATCH_NUMBERS_RESTARTED,
        f"{write.describe()} has been written already, as a batch {difference}: the checkpoint is "
        "a copy or was restored from a backup",
        "Continue from the checkpoint that the query used last, or set the option writeId to a new "
        "name, under which this batch and those that follow are written. If the query itself does "
        "not return the same rows twice, set failOnDataLoss to false: it then drops this batch as "
        "a repetition",
    )
