"""The programs, in the order of the page, and those that cannot be obtained."""

from __future__ import annotations

from tests.compat.ecosystem.model import Program
from tests.compat.ecosystem.programs import (
    apicurio,
    burrow,
    connect,
    connect_standalone,
    debezium,
    flink,
    group_exporter,
    kaskade,
    mirror_maker,
    python_streams,
    rsyslog,
    ruby_kafka,
    streams_smoke,
    telegraf,
    word_count,
)

PROGRAMS: tuple[Program, ...] = (
    connect.PROGRAM,
    connect_standalone.PROGRAM,
    mirror_maker.PROGRAM,
    streams_smoke.PROGRAM,
    word_count.PROGRAM,
    apicurio.PROGRAM,
    debezium.PROGRAM,
    flink.PROGRAM,
    python_streams.QUIXSTREAMS,
    python_streams.FAUST,
    python_streams.BYTEWAX,
    telegraf.PROGRAM,
    rsyslog.PROGRAM,
    burrow.PROGRAM,
    group_exporter.PROGRAM,
    kaskade.PROGRAM,
    ruby_kafka.PROGRAM,
)

#: Programs without a row of results, why, and what of their kind has a row. Looked up last on
#: `LOOKED_UP`.
LOOKED_UP = "2026-11-23"
NOT_RUN: tuple[tuple[str, str, str], ...] = (
    (
        "Karapace",
        "not on PyPI or npm and not in Debian; its repository needs a fork of Avro's Python "
        "package, which is in no registry, and a Go library that it compiles",
        "Apicurio Registry",
    ),
    ("Confluent's serializers for Java", "not on Maven Central", "its serializers for Python"),
    ("ksqlDB", "not on Maven Central", "none; it is built on Kafka Streams"),
    (
        "kafka_exporter, kminion",
        "not available from the Go module proxy (403, Forbidden)",
        "Burrow, prometheus-kafka-consumer-group-exporter",
    ),
    (
        "Redpanda Console and Connect",
        "not available from the Go module proxy (403, Forbidden)",
        "kaskade, Telegraf",
    ),
    ("AKHQ, Kafdrop, Kafbat UI (kafka-ui)", "not on Maven Central", "kaskade"),
    ("Vector", "not in Debian; crates.io has another program of this name", "Telegraf, rsyslog"),
    ("Logstash", "not in Debian and not on Maven Central", "Telegraf, rsyslog"),
    ("rdkafka-ruby", "not in Debian; no registry of gems is reached", "ruby-kafka"),
)

#: What programs and clients of these pages ask for that a broker in ZooKeeper mode does not have:
#: who asks, for what, what Kafka does in ZooKeeper mode, what Ottla does.
WANTED: tuple[tuple[str, str, str, str], ...] = (
    (
        "Kafka Streams 4 with `group.protocol=streams`",
        "the group protocol of Streams (KIP-1071)",
        "not listed in ApiVersions: UnsupportedVersionException",
        "the same",
    ),
    (
        "`group.protocol=consumer` of the Java clients, confluent-kafka and "
        "confluent-kafka-javascript, `groupProtocol: 'consumer'` of @platformatic/kafka",
        "the new group protocol (KIP-848)",
        "UNSUPPORTED_VERSION",
        "works, unless the cluster has a broker of Kafka 3.9",
    ),
    (
        "`KafkaShareConsumer`, `ShareConsumer` of confluent-kafka, kafka-share-groups",
        "share groups (KIP-932)",
        "not listed in ApiVersions",
        "works, unless the cluster has a broker of Kafka 3.9",
    ),
    (
        "clients that push metrics, such as the Java clients; kafka-client-metrics",
        "client telemetry (KIP-714)",
        "not listed in ApiVersions; clients do without",
        "the same, unless `ottla.metrics.address` is set",
    ),
    (
        "kafka-topics --describe, and other users of the Java admin client",
        "DescribeTopicPartitions (KIP-966)",
        "not listed in ApiVersions; the admin client sends Metadata",
        "listed",
    ),
)
