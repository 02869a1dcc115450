"""The same tests against Apache Kafka 3.9.1: the connector is not for our broker alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.doubles.apache_kafka import ApacheKafka, start_kafka
from tests.spark import test_batch_read, test_sink, test_stream_read

pytestmark = pytest.mark.kafka

NewTopicName = Callable[[str], str]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with start_kafka(tmp_path_factory.mktemp("kafka")) as process:
        yield process


@pytest.mark.parametrize(
    "test",
    [
        test_batch_read.test_every_column_of_every_kind_of_record,
        test_batch_read.test_every_codec,
        test_batch_read.test_offsets_and_timestamps_bound_what_is_read,
        test_batch_read.test_patterns_and_assignments,
        test_batch_read.test_aborted_records_are_for_read_uncommitted_only,
        test_batch_read.test_deleted_records_are_loss_or_not,
        test_batch_read.test_timestamps_are_utc_instants,
        test_sink.test_a_standard_client_reads_what_was_written,
        test_sink.test_topic_and_partition_columns,
    ],
    ids=lambda test: test.__name__,
)
def test_batch(
    test: Callable[..., None], spark: SparkSession, kafka: ApacheKafka, new_topic: NewTopicName
) -> None:
    test(spark, kafka, new_topic)


@pytest.mark.parametrize(
    "test",
    [
        test_stream_read.test_batches_are_limited_and_end_with_what_was_there,
        test_stream_read.test_new_partitions_and_topics_are_read_from_their_beginning,
        test_stream_read.test_bytes_limit_a_batch,
        test_stream_read.test_the_group_shows_the_position_and_a_new_query_can_start_from_it,
        test_stream_read.test_a_recreated_topic_is_detected_by_its_id,
    ],
    ids=lambda test: test.__name__,
)
def test_stream(
    test: Callable[..., None],
    spark: SparkSession,
    kafka: ApacheKafka,
    new_topic: NewTopicName,
    tmp_path: Path,
) -> None:
    test(spark, kafka, new_topic, tmp_path)


def test_exactly_once(
    spark: SparkSession, kafka: ApacheKafka, new_topic: NewTopicName, tmp_path: Path
) -> None:
    source, target = new_topic("from"), new_topic("to")
    copy = test_sink.make_copy(spark, kafka.bootstrap, source, target, tmp_path)
    test_sink.test_a_repeated_batch_is_written_exactly_once(copy)
