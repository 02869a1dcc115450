from ottla.broker.share.persister import RecordState, SharePartitionKey


def test_states_are_those_that_kafka_stores() -> None:
    states = (RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ACKNOWLEDGED)
    assert (*states, RecordState.ARCHIVED) == (0, 1, 2, 4)


def test_a_key_is_a_value() -> None:
    assert SharePartitionKey("g", bytes(16), 1) == SharePartitionKey("g", bytes(16), 1)
