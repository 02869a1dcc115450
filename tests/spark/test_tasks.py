"""What executors run, without Spark around it: reading and writing tasks against real brokers.

Here things happen in the middle of a task (a restart, a deletion, a twin) at a chosen moment, which
through Spark nothing could choose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from ottla.broker.testing.embedded import Broker
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.connections import cluster_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import LATEST, OffsetRange
from pyspark_ottla.options.options import SourceOptions, parse_source_options
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.task import read_range
from pyspark_ottla.write.writing import write_task
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.certificates import Certificates
from tests.spark.conftest import ROOT
from tests.spark.support import (
    Sent,
    create_topic,
    delete_topic,
    producer,
    recreate,
    send,
    write,
)

NewTopicName = Callable[[str], str]


def source(bootstrap: str, topic: str, **options: object) -> SourceOptions:
    """Options of a read; `_` in a name stands for `.`."""
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    return parse_source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **given})


def batches(options: SourceOptions, start: int, end: int, partition: int = 0) -> Iterator[Any]:
    [topic] = options.subscription.topics
    wanted = OffsetRange(TopicPartition(topic, partition), start, end)
    return read_range(options, row_schema(options), wanted)


def values(some: Iterator[Any]) -> list[bytes]:
    return [value for batch in some for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_broker_that_restarts_in_the_middle_of_a_task(tmp_path: Path, prefetch: int) -> None:
    with start_broker(tmp_path) as broker:
        create_topic(broker.bootstrap, "t")
        sent = [b"%d " % n * 100 for n in range(3000)]
        write(broker.bootstrap, "t", [Sent(value) for value in sent], batch_size=20_000)
        options = source(broker.bootstrap, "t", fetchMaxBytes=40_000, prefetch=prefetch)
        reading = batches(options, 0, 3000)
        found = next(reading).column("value").to_pylist()
        assert len(found) < 1000
        broker.kill()
        broker.start()
        assert found + values(reading) == sent


def test_records_that_are_deleted_between_the_plan_and_the_task(
    broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("deleted-late")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(10)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([Place(topic, 0, 6)]).values():
        future.result()
    what = rf"KAFKA_DATA_LOSS\.COULD_NOT_READ_OFFSET_RANGE.*{topic}-0.*begins at offset 6"
    with pytest.raises(ConnectorError, match=what):
        values(batches(source(broker.bootstrap, topic), 2, 10))
    for on_data_loss in ("false", "warn"):
        options = source(broker.bootstrap, topic, failOnDataLoss=on_data_loss)
        assert values(batches(options, 2, 10)) == [b"6", b"7", b"8", b"9"]
        assert values(batches(options, 2, 5)) == []


def test_a_topic_that_is_deleted_between_the_plan_and_the_task(
    broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    topic = new_topic("gone")
    options = source(broker.bootstrap, topic, kafkaConsumer_pollTimeoutMs="2400ms")
    with pytest.raises(ConnectorError, match=rf"KAFKA_DATA_LOSS.*{topic}-0 is not there any more"):
        values(batches(options, 0, 5))
    tolerant = source(
        broker.bootstrap, topic, kafkaConsumer_pollTimeoutMs="2400ms", failOnDataLoss="false"
    )
    assert values(batches(tolerant, 0, 5)) == []


def test_an_advertised_listener_that_cannot_be_reached(tmp_path: Path) -> None:
    """The bootstrap address works, the address in the broker's metadata does not."""
    before = BrokerProcess(tmp_path, {})
    before.start()
    create_topic(before.bootstrap, "t")
    write(before.bootstrap, "t", [Sent(b"1")])
    before.stop()
    broker = BrokerProcess(tmp_path, {"advertised.listeners": "PLAINTEXT://127.0.0.1:9"})
    broker.start()
    try:
        options = source(
            broker.bootstrap,
            "t",
            kafka_default_api_timeout_ms="2400",
            kafkaConsumer_pollTimeoutMs="2400ms",
        )
        advice = (
            rf"127\.0\.0\.1:9 is none of kafka\.bootstrap\.servers \({broker.bootstrap}\) but the "
            r"address that the broker itself returned: .* its advertised\.listeners"
        )
        what = r"BROKER_UNAVAILABLE\] Looking up offsets of t-0 failed: .*"
        with pytest.raises(ConnectorError, match=what + advice), cluster_of(options) as cluster:
            cluster.offsets_at({TopicPartition("t", 0): LATEST})
        what = r"FETCH_TIMEOUT\] No record of t-0 from offset 0 on .*"
        with pytest.raises(ConnectorError, match=what + advice):
            values(batches(options, 0, 1))
    finally:
        broker.stop()


def test_a_topic_created_again_between_the_plan_and_the_task(
    broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    """Its records are others than those that were planned, at the same offsets."""
    topic = new_topic("replaced")
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"old")] * 5)
    options = source(broker.bootstrap, topic, kafkaConsumer_pollTimeoutMs="2400ms")
    with cluster_of(options) as cluster:
        ids = cluster.topic_ids([topic])
    delete_topic(broker.bootstrap, topic)
    recreate(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"new")] * 5)
    wanted = OffsetRange(TopicPartition(topic, 0), 2, 5, ids[topic])
    what = rf"Offsets 2 to 5 of {topic}-0 .*topic id {ids[topic]} is not there .*created again"
    with pytest.raises(ConnectorError, match=what):
        values(read_range(options, row_schema(options), wanted))
    assert values(batches(options, 2, 5)) == [b"new"] * 3, "what trackTopicIds=false reads"


def test_markers_at_the_end_of_a_range_are_no_loss(
    broker: BrokerProcess, new_topic: NewTopicName
) -> None:
    """The range ends with markers, or is nothing but aborted records and markers."""
    topic = new_topic("markers")
    create_topic(broker.bootstrap, topic)
    client = producer(broker.bootstrap, transactional_id=topic)
    client.init_transactions(30)
    for commits in (True, False):
        client.begin_transaction()
        send(client, topic, [Sent(b"%d" % n) for n in range(3)])
        if commits:
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)
    options = source(broker.bootstrap, topic, kafka_isolation_level="read_committed")
    with cluster_of(options) as cluster:
        end = cluster.offsets_at({TopicPartition(topic, 0): LATEST})[TopicPartition(topic, 0)]
    assert end == 8
    assert values(batches(options, 0, 8)) == [b"0", b"1", b"2"]
    assert values(batches(options, 0, 4)) == [b"0", b"1", b"2"]
    assert values(batches(options, 3, 8)) == []
    assert values(batches(source(broker.bootstrap, topic), 3, 8)) == [b"0", b"1", b"2"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_broker(certificates: Certificates) -> Iterator[Broker]:
    """Requires client certificates."""
    with Broker(
        listeners="SSL://127.0.0.1:0",
        security_inter_broker_protocol="SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_type="PEM",
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
    ) as running:
        yield running


def test_tls_with_certificates_in_files_and_inline(
    tls_broker: Broker, certificates: Certificates
) -> None:
    authority, client = certificates.authority_path, certificates.client_path
    by_file = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": str(authority),
        "kafka.ssl.certificate.location": str(client),
        "kafka.ssl.key.location": str(client),
    }
    inline = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": authority.read_text(),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": client.read_text(),
        "kafka.ssl.keystore.key": client.read_text(),
    }
    batch = pa.record_batch({"value": pa.array([b"1", b"2"])})
    for number, security in enumerate((by_file, inline), 1):
        target = {"kafka.bootstrap.servers": tls_broker.bootstrap, "topic": "t", **security}
        result = write_task(parse_sink_options(target), iter([batch]), None)
        assert result.rows == 2
        options = source(tls_broker.bootstrap, "t", **security)
        assert values(batches(options, 0, 2 * number)) == [b"1", b"2"] * number


def test_tls_with_an_authority_that_is_not_the_brokers(tls_broker: Broker, tmp_path: Path) -> None:
    other = Certificates(tmp_path).authority_path
    options = source(
        tls_broker.bootstrap, "t", kafka_security_protocol="SSL", kafka_ssl_ca_location=other
    )
    with (
        pytest.raises(ConnectorError, match=r"certificate.*Check kafka\.security\.protocol"),
        cluster_of(options) as cluster,
    ):
        cluster.partitions(options.subscription)


MEASURED = """
import json, resource, sys
sys.path.insert(0, {root!r})
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.task import read_range

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

bootstrap, topic, count = sys.argv[1:]
options = parse_source_options({{"kafka.bootstrap.servers": bootstrap, "subscribe": topic}})
before, rows = peak_mib(), 0
wanted = OffsetRange(TopicPartition(topic, 0), 0, int(count))
for batch in read_range(options, row_schema(options), wanted):
    rows += batch.num_rows
print(json.dumps([rows, before, peak_mib()]))
"""


def test_the_memory_of_a_task_has_a_ceiling(broker: BrokerProcess, new_topic: NewTopicName) -> None:
    """Far more records than a task may hold, compressed well: one fetch brings many of them."""
    topic = new_topic("ceiling")
    create_topic(broker.bootstrap, topic)
    count, size = 25_000, 20_000  # half a gigabyte
    records = (Sent(b"x" * size) for _ in range(count))
    write(broker.bootstrap, topic, records, compression_type="zstd", batch_size=1_000_000)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MEASURED.format(root=str(ROOT)),
            broker.bootstrap,
            topic,
            str(count),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, before, peak = json.loads(done.stdout)
    assert rows == count
    assert peak - before < 2 * 4 + 200, "prefetch x fetchMaxBytes and 200 MiB"
