import pytest

from ottla.broker.groups.share.share_group import ShareGroup, ShareMember
from ottla.broker.groups.share.state_partitions import StatePartitions
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.groups.consumer_helpers import Catalog
from tests.unit.broker.share.helpers import MemoryPersister

TOPIC = (1).to_bytes(16)


class Scene:
    """A group on a topic with three partitions, the first of which has a state."""

    def __init__(self) -> None:
        self.persister = MemoryPersister()
        self.states = StatePartitions(self.persister, Catalog(t=3))
        self.group = ShareGroup("g")
        self.group.initialized = {TOPIC: [0]}

    @property
    def stored(self) -> dict[int, int]:
        return {key.partition: offset for key, offset in self.persister.start_offsets.items()}


async def test_partitions_without_state_are_initialized() -> None:
    scene = Scene()
    scene.group.members["a"] = ShareMember("a")
    assert await scene.states.initialize(scene.group, ["t", "absent"]) == {TOPIC: [0, 1, 2]}
    assert scene.stored == {1: -1, 2: -1}


async def test_the_first_member_initializes_all() -> None:
    scene = Scene()
    await scene.states.initialize(scene.group, ["t"])
    assert scene.stored == {0: -1, 1: -1, 2: -1}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.FENCED_STATE_EPOCH, [0, 1, 2]),  # its offsets were reset
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, [0, 2]),
    ],
)
async def test_errors(code: int, expected: list[int]) -> None:
    scene = Scene()
    scene.group.members["a"] = ShareMember("a")
    scene.persister.next_error = code
    assert await scene.states.initialize(scene.group, ["t"]) == {TOPIC: expected}


async def test_offsets_are_reset() -> None:
    scene = Scene()
    assert await scene.states.reset(scene.group, {TOPIC: {2: 7}}) == {TOPIC: [0, 2]}
    assert scene.stored == {2: 7}


async def test_an_error_does_not_stop_the_deletion_of_the_others() -> None:
    scene = Scene()
    await scene.states.initialize(scene.group, ["t"])
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError):
        await scene.states.delete("g", {TOPIC: [0, 1, 2]})
    assert scene.stored == {0: -1}
    await scene.states.delete("g", {TOPIC: [0, 1, 2]})
    assert scene.stored == {}


async def test_the_summary_fences_no_leader() -> None:
    scene = Scene()
    assert (await scene.states.summary(SharePartitionKey("g", TOPIC, 0))).leader_epoch == -1


async def test_what_failed_for_the_first_member_is_requested_again() -> None:
    """The deletion of a group was interrupted: the state is gone, the group still lists it."""
    scene = Scene()
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.group.initialized = await scene.states.initialize(scene.group, ["t"])
    assert scene.stored == {1: -1, 2: -1}
    scene.group.members["a"] = ShareMember("a")
    assert not scene.states.are_initialized(scene.group, ["t"])
    scene.group.initialize_at_s = 0.0  # the pause, as long as the attempt took, is over
    await scene.states.initialize(scene.group, ["t"])
    assert scene.stored == {0: -1, 1: -1, 2: -1}
    assert scene.states.are_initialized(scene.group, ["t"])


async def test_a_topic_that_the_first_member_does_not_subscribe_to_is_requested_later() -> None:
    """After the same interruption."""
    scene = Scene()
    await scene.states.initialize(scene.group, [])
    scene.group.members["a"] = ShareMember("a")
    await scene.states.initialize(scene.group, ["t"])
    assert scene.stored == {0: -1, 1: -1, 2: -1}
