"""Tiered segments straight from an S3 server: failing requests and wrong credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.s3_server import Fault, S3Server, s3_server
from tests.doubles.seaweedfs import ACCESS_KEY, SECRET_KEY
from tests.spark.support import load
from tests.spark.test_tiered_read import (
    SEGMENT_BYTES,
    TOPIC,
    Tiered,
    broker_settings,
    in_order,
    task_reports,
    write_history,
)

pytestmark = pytest.mark.spark

FAULTS = [Fault.UNAVAILABLE, None, Fault.TRUNCATED, None, Fault.LOST, None]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def tiered(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    """History in a bucket; the log start offset is in the middle of a segment."""
    directory = tmp_path_factory.mktemp("tiered")
    with start_broker(directory, **broker_settings(s3.settings())) as broker:
        tiered = Tiered(broker.bootstrap, directory, directory)
        write_history(tiered, broker.data_directory)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.delete_records([Place(TOPIC, 0, 90)]).values():
            assert future.result(60).low_watermark == 90
        yield tiered


@pytest.fixture(autouse=True)
def no_faults(s3: S3Server) -> Iterator[None]:
    yield
    s3.faults = []


def options(s3: S3Server, **more: object) -> dict[str, object]:
    store = {
        f"ottla_remote_rsm_config_{name.replace('.', '_')}": value
        for name, value in s3.settings().items()
    }
    return {
        "subscribe": TOPIC,
        "includeHeaders": "true",
        "ottla_remote_read": "direct",
        "kafka_isolation_level": "read_committed",
        **store,
        **more,
    }


def through_broker(spark: SparkSession, tiered: Tiered) -> list[object]:
    level = {"kafka_isolation_level": "read_committed", "includeHeaders": "true"}
    rows = in_order(load(spark, tiered.bootstrap, subscribe=TOPIC, **level).collect())
    assert rows[0]["offset"] >= 90
    return list(rows)


def test_rows_from_s3_are_those_of_the_broker(
    spark: SparkSession, tiered: Tiered, s3: S3Server
) -> None:
    expected = through_broker(spark, tiered)
    with task_reports() as (address, reports):
        frame = load(
            spark,
            tiered.bootstrap,
            **options(s3, taskMetricsAddress=address, ottla_remote_onError="fail"),
        )
        s3.faults = FAULTS * 4
        assert in_order(frame.collect()) == expected
        eventually(lambda: sum(r["remote_bytes"] for r in reports) > 5 * SEGMENT_BYTES, reports)


def test_a_plan_has_no_credentials(
    spark: SparkSession, tiered: Tiered, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = load(spark, tiered.bootstrap, **options(s3))
    for mode in ("extended", "formatted", "cost"):
        frame.explain(mode=mode)
    plans = capsys.readouterr().out
    assert "BatchScan" in plans
    assert SECRET_KEY not in plans
    assert ACCESS_KEY not in plans


def test_wrong_credentials(spark: SparkSession, tiered: Tiered, s3: S3Server) -> None:
    # The broker has what it copied: nothing else sends requests now.
    s3.faults = [Fault.DENIED] * 1000
    failing = load(spark, tiered.bootstrap, **options(s3, ottla_remote_onError="fail"))
    # A worker that has the manifests begins with a GET, another one with a HEAD, which has no body.
    code = r"(SignatureDoesNotMatch|403 Forbidden)"
    sentence = rf"the store denies access \({code}\)\. Check the credentials"
    with pytest.raises(Exception, match=sentence):
        failing.collect()
