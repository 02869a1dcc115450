import pytest

from ottla.broker.coordination.ports import SHARE_STATE_TOPIC
from ottla.broker.share.coordinator.local_persister import LocalPersister
from ottla.broker.share.persister import PersistedState, SharePartitionKey
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.coordinator_log import MemoryLog
from tests.unit.broker.share.coordinator.test_share_coordinator import coordinator, update

KEY = SharePartitionKey("group", bytes(16), 2)


class Topics:
    def __init__(self) -> None:
        self.created: list[str] = []
        self.code = 0

    async def ensure(self, name: str) -> int:
        self.created.append(name)
        return self.code


async def test_the_state_is_that_of_the_coordinator() -> None:
    topics = Topics()
    persister = LocalPersister(coordinator(MemoryLog()), topics.ensure)
    await persister.initialize(KEY, 0, -1)
    assert topics.created == [SHARE_STATE_TOPIC]
    assert await persister.read(KEY, 1) == PersistedState(0, -1, ())
    await persister.write(KEY, update())
    assert (await persister.summary(KEY, 1)).delivery_complete_count == 5
    await persister.delete(KEY)
    assert (await persister.summary(KEY, 1)).start_offset == -1


async def test_a_topic_that_cannot_be_created() -> None:
    topics = Topics()
    topics.code = ErrorCode.INVALID_REPLICATION_FACTOR
    persister = LocalPersister(coordinator(MemoryLog()), topics.ensure)
    with pytest.raises(KafkaError, match=SHARE_STATE_TOPIC):
        await persister.initialize(KEY, 0, -1)
