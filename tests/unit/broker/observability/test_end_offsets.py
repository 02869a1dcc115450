from ottla.broker.observability.metrics_sources import end_offset_reader
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import TOPIC, Replicas


def test_the_high_watermark_of_partitions_that_are_led_here() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append(3)
    replicas.follow(2, 1)
    read = end_offset_reader(replicas.manager)
    assert read(TopicPartition(TOPIC, 0)) == replicas.log().high_watermark == 3
    assert read(TopicPartition(TOPIC, 1)) is None
    assert read(TopicPartition("other", 0)) is None
