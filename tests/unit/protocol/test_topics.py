from ottla.protocol.topics import TopicPartition


def test_reads_like_a_log_directory() -> None:
    assert str(TopicPartition("orders-eu", 3)) == "orders-eu-3"


def test_is_a_key() -> None:
    assert {TopicPartition("a", 1): "x"}["a", 1] == "x"
