"""What one task read and how long that took, as numbers and as one line of log.

The line is a JSON object of the logger `ottla.spark.task` at the level INFO. In batch reads, Spark
collects it from all executors where spark.sql.pyspark.worker.logging.enabled is true; see
`pyspark_ottla.lag.task_metrics`. The option logTaskMetrics writes it to the standard error, and
taskMetricsAddress sends it to a `TaskListener`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from pyspark_ottla.lag import TASK_LOGGER
from pyspark_ottla.offsets import OffsetRange, describe
from pyspark_ottla.warnings_on_stderr import is_handled

logger = logging.getLogger(TASK_LOGGER)
# Without a handler, as in Spark's workers by default, Python prints warnings and errors only.
logger.setLevel(logging.INFO)


@dataclass(slots=True)
class TaskMetrics:
    """Totals of one task. Times are of the task's threads: fetching runs ahead of decoding, so that
    their sum may exceed the time of the task."""

    rows: int = 0
    fetched_bytes: int = 0
    remote_bytes: int = 0  # of the fetched ones, those straight from the store of tiered segments
    remote_errors: int = 0  # segments that were read through the broker instead
    fetch_requests: int = 0
    retries: int = 0
    lost_offsets: int = 0
    bad_records: int = 0  # that could not be decoded, and did not fail the task
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0

    def report(
        self, wanted: OffsetRange, *, to_stderr: bool = False, address: str | None = None
    ) -> None:
        """Logs the totals of the task that read `wanted`; to the standard error if no handler is
        configured and `to_stderr` is set. Sends them to the `TaskListener` at `address`."""
        if address is None and not to_stderr and not is_handled(logger):
            return
        numbers = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        place = {"partition": describe(wanted.partition), "start": wanted.start, "end": wanted.end}
        report = query_of_task() | place | numbers
        if address is not None:
            from pyspark_ottla import task_listener

            task_listener.send(address, report)
        if not is_handled(logger):
            if not to_stderr:
                return
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
            logger.addHandler(handler)
        logger.info("%s", json.dumps(report))


def query_of_task() -> dict[str, str]:
    """Stable id of the streaming query and number of the batch; empty in a batch read."""
    try:
        from pyspark import TaskContext

        context = TaskContext.get()
    except ImportError:
        return {}
    if context is None:
        return {}
    names = {"query": "sql.streaming.queryId", "batch": "streaming.sql.batchId"}
    found = {name: context.getLocalProperty(key) for name, key in names.items()}
    return {name: value for name, value in found.items() if value}
