"""Tiered segments straight from the store, on a broker that copies them: the rows are those of a
read through the broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.remote.planning import EARLIEST_LOCAL, LATEST_TIERED, special_offset
from pyspark_ottla.task_listener import TaskListener
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import folder_settings, tiered_settings
from tests.spark.support import create_topic, load

pytestmark = pytest.mark.spark

TOPIC = "history"
SEGMENT_BYTES = 20_000


class Tiered(NamedTuple):
    bootstrap: str
    store: Path
    directory: Path

    def options(self, store: Path | None = None, **more: object) -> dict[str, object]:
        """Those of a direct read; `_` in a name stands for `.`."""
        prefix = "ottla_remote_rsm_config_"
        return {
            "subscribe": TOPIC,
            "includeHeaders": "true",
            "ottla_remote_read": "direct",
            f"{prefix}storage_backend_class": "filesystem",
            f"{prefix}storage_root": store or self.store,
            **more,
        }


def broker_settings(store: dict[str, str]) -> dict[str, object]:
    """Those of a broker whose tasks run without delay."""
    return {
        **tiered_settings(store),
        "rlmm_config_remote_log_metadata_topic_num_partitions": 3,
        "transaction_state_log_num_partitions": 1,
        "transaction_state_log_replication_factor": 1,
        "transaction_state_log_min_isr": 1,
    }


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    directory = tmp_path_factory.mktemp("tiered")
    store = directory / "store"
    store.mkdir()
    with start_broker(directory, **broker_settings(folder_settings(store, 4096))) as broker:
        tiered = Tiered(broker.bootstrap, store, directory)
        write_history(tiered, broker.data_directory)
        yield tiered


def write_history(
    tiered: Tiered, data: Path, *, partitions: int = 1, transactions: int = 40
) -> None:
    """Committed and aborted transactions over many segments, all but the last of them tiered.
    Returns when nothing more is copied. `data` is the broker's data directory."""
    create_topic(
        tiered.bootstrap,
        TOPIC,
        partitions,
        config={
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": str(2 * SEGMENT_BYTES),
        },
    )
    producer = Producer({"bootstrap.servers": tiered.bootstrap, "transactional.id": "history"})
    producer.init_transactions(60)
    for number in range(transactions):
        producer.begin_transaction()
        for record in range(25):
            producer.produce(
                TOPIC,
                key=b"k%d" % record,
                value=b"%d-" % number * 60,
                partition=record % partitions,
                timestamp=1_700_000_000_000 + 1000 * number + record,
                headers=[("number", b"%d" % number), ("none", None)] if record % 5 == 0 else None,
            )
        if number % 7 == 3:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    options = parse_source_options(
        {"kafka.bootstrap.servers": tiered.bootstrap, "subscribe": TOPIC}
    )
    with cluster_of(options) as cluster:

        def is_tiered(partition: int) -> bool:
            place = TopicPartition(TOPIC, partition)
            active = max(int(path.stem) for path in data.glob(f"{TOPIC}-{partition}/*.log"))
            local = special_offset(cluster, place, EARLIEST_LOCAL)
            # About half of the records, which are 25 to a transaction.
            enough = 12 * transactions // partitions
            return local > enough and special_offset(cluster, place, LATEST_TIERED) == active - 1

        eventually(
            lambda: all(map(is_tiered, range(partitions))),
            "the first segments did not leave the disk",
        )


@contextmanager
def task_reports() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address for the option taskMetricsAddress, and what tasks have sent to it."""
    reports: list[dict[str, Any]] = []
    with TaskListener(callback=reports.append) as listener:
        yield listener.address, reports


def remote_bytes(reports: list[dict[str, Any]]) -> int:
    return sum(report["remote_bytes"] for report in reports)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_rows_are_those_of_a_read_through_the_broker(
    spark: SparkSession, tiered: Tiered, isolation: str
) -> None:
    level = {"kafka_isolation_level": isolation}
    through_broker = load(spark, tiered.bootstrap, subscribe=TOPIC, includeHeaders="true", **level)
    with task_reports() as (address, reports):
        directly = load(
            spark,
            tiered.bootstrap,
            **tiered.options(minPartitions=2, taskMetricsAddress=address, **level),
        )
        found = in_order(directly.collect())
        # Two tasks have read from the store side by side, and the reports come after the rows.
        eventually(lambda: sum(each["remote_bytes"] > 0 for each in reports) >= 2, reports)
        eventually(lambda: remote_bytes(reports) > 5 * SEGMENT_BYTES, reports)
    assert found == in_order(through_broker.collect())
    assert len(found) == (850 if isolation == "read_committed" else 1000)
    assert [report["remote_errors"] for report in reports] == [0] * len(reports)


def test_a_missing_object_is_read_through_the_broker_or_fails_the_task(
    spark: SparkSession, tiered: Tiered, tmp_path: Path
) -> None:
    damaged = tmp_path / "store"
    shutil.copytree(tiered.store, damaged)
    sorted(damaged.rglob("*.log"))[1].unlink()
    through_broker = load(spark, tiered.bootstrap, subscribe=TOPIC, includeHeaders="true")
    with task_reports() as (address, reports):
        options = tiered.options(damaged, taskMetricsAddress=address)
        found = in_order(load(spark, tiered.bootstrap, **options).collect())
        eventually(lambda: sum(r["remote_errors"] for r in reports) == 1, reports)
    assert found == in_order(through_broker.collect())
    options = tiered.options(damaged, ottla_remote_onError="fail")
    with pytest.raises(Exception, match=r"\[REMOTE_READ_FAILED\] Offsets \d+ to \d+ of history-0"):
        load(spark, tiered.bootstrap, **options).collect()
