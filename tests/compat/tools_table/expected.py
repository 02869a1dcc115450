"""What tools print otherwise on Ottla than on Apache Kafka 3.9.1, and why."""

_PAGES = (
    "the same rows; DescribeTopicPartitions is listed, so Elr and LastKnownElr are empty, not N/A"
)

EXPECTED: dict[str, str] = {
    "kafka-broker-api-versions": "lists DescribeTopicPartitions, too",
    "kafka-topics --describe": _PAGES,
    "kafka-topics --describe --topic t": _PAGES,
    "kafka-topics --describe --at-min-isr-partitions": _PAGES,
    "kafka-configs --describe --entity-type broker-loggers --entity-name 0": "its own loggers",
}
