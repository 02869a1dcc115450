"""Counts records by key with Bytewax: `bytewax_job.py BOOTSTRAP STATE`."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from bytewax import operators
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main


def _count(state: int | None, _: bytes) -> tuple[int, int]:
    count = (state or 0) + 1
    return count, count


def main() -> None:
    bootstrap, name = sys.argv[1:]
    directory = Path(name)
    if not directory.exists():
        directory.mkdir()
        init_db_dir(directory, 1)
    flow = Dataflow("counter")
    found = kafka.input("words", flow, brokers=[bootstrap], topics=["words"])
    keyed = operators.map("key", found.oks, lambda record: (record.key.decode(), record.value))
    counted = operators.stateful_map("count", keyed, _count)
    records = operators.map(
        "record",
        counted,
        lambda row: KafkaSinkMessage(key=row[0].encode(), value=str(row[1]).encode()),
    )
    kafka.output("counts", records, brokers=[bootstrap], topic="counts")
    recovery = RecoveryConfig(directory, backup_interval=timedelta(0))
    cli_main(flow, epoch_interval=timedelta(seconds=1), recovery_config=recovery)


if __name__ == "__main__":
    main()
