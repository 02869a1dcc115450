from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.workers import WorkerPlace
from ottla.broker.coordination import auto_topic_creation
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.topic_admin import DEFAULT, NewTopic
from ottla.controller.tree.store import ConnectionLost
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import Replicas

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class Scene:
    """Three live brokers, or as many as `live`."""

    def __init__(self, live: int = 3, **settings: str) -> None:
        replicas = Replicas()
        replicas.live = set(range(1, live + 1))
        replicas.publish()
        self.metadata = replicas.metadata
        self.config = BrokerConfig({name.replace("_", "."): t for name, t in settings.items()})
        self.created: list[NewTopic] = []
        self.codes: dict[str, int] = {}
        self.failure: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.creation = AutoTopicCreation(self.config, self.metadata, self._create)

    async def _create(self, topics: list[NewTopic]) -> dict[str, int]:
        self.created.extend(topics)
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        return {topic.name: self.codes.get(topic.name, 0) for topic in topics}

    def announce(self, name: str, leader: int) -> None:
        state = UpdateMetadataPartitionState(partition_index=0, leader=leader)
        topic = UpdateMetadataTopicState(name, b"n" * 16, [state])
        publish(
            self.metadata,
            UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic]),
        )


def run(body: Callable[[Scene], Awaitable[None]], live: int = 3, **settings: str) -> None:
    async def whole() -> None:
        await body(Scene(live, **settings))

    asyncio.run(whole())


def test_a_topic_gets_the_brokers_defaults() -> None:
    async def body(scene: Scene) -> None:
        codes = scene.creation.create_in_background(["new"])
        assert codes == {"new": ErrorCode.LEADER_NOT_AVAILABLE}
        await asyncio.sleep(0)
        assert scene.created == [NewTopic("new", DEFAULT, DEFAULT)]

    run(body)


def test_a_topic_on_its_way_is_not_requested_again() -> None:
    async def body(scene: Scene) -> None:
        scene.may_go_on.clear()
        scene.creation.create_in_background(["new"])
        await asyncio.sleep(0)
        again = scene.creation.create_in_background(["new"])
        assert again == {"new": ErrorCode.LEADER_NOT_AVAILABLE}
        scene.may_go_on.set()
        await asyncio.sleep(0.01)
        assert len(scene.created) == 1
        # After it is done the next request retries: it may have failed.
        scene.creation.create_in_background(["new"])
        await asyncio.sleep(0)
        assert len(scene.created) == 2

    run(body)


def test_too_few_brokers() -> None:
    async def body(scene: Scene) -> None:
        codes = scene.creation.create_in_background(["new"])
        assert codes == {"new": ErrorCode.INVALID_REPLICATION_FACTOR}
        await asyncio.sleep(0)
        assert scene.created == []

    run(body, default_replication_factor="4")


@pytest.mark.parametrize(
    ("name", "partitions", "policy"), [(GROUPS, 50, "compact"), (TRANSACTIONS, 50, "compact")]
)
def test_coordinators_topics_have_settings_of_their_own(
    name: str, partitions: int, policy: str
) -> None:
    async def body(scene: Scene) -> None:
        scene.creation.create_in_background([name])
        await asyncio.sleep(0)
        (topic,) = scene.created
        assert (topic.num_partitions, topic.replication_factor) == (partitions, 3)
        assert topic.configs["cleanup.policy"] == policy
        if name == TRANSACTIONS:
            assert topic.configs["min.insync.replicas"] == "2"
            assert topic.configs["unclean.leader.election.enable"] == "false"

    run(body, zookeeper_connect="zk:2181")


def test_a_broker_that_is_alone_makes_do_with_itself() -> None:
    async def body(scene: Scene) -> None:
        scene.creation.create_in_background([GROUPS, TRANSACTIONS])
        await asyncio.sleep(0)
        assert [topic.replication_factor for topic in scene.created] == [1, 1]
        assert scene.created[1].configs["min.insync.replicas"] == "1"

    run(body, live=1)


@pytest.mark.parametrize(("workers", "factor"), [(2, 2), (4, 3)])
def test_the_first_worker_of_a_machine_waits_for_the_others(workers: int, factor: int) -> None:
    """With the replicas that were live when the first client came, the topic would stay so."""

    async def body(scene: Scene) -> None:
        place = WorkerPlace(0, workers, "here", "/run", {}, None)
        config = scene.config.for_worker({"offsets.topic.replication.factor": "3"}, place)
        creation = AutoTopicCreation(config, scene.metadata, scene._create)
        codes = creation.create_in_background([GROUPS])
        if scene.metadata.snapshot.brokers.keys() == {1}:
            assert codes == {GROUPS: ErrorCode.INVALID_REPLICATION_FACTOR}
        else:
            await asyncio.sleep(0)
            assert [topic.replication_factor for topic in scene.created] == [factor]

    run(body, live=1)
    run(body, live=workers)


def test_one_broker_of_a_cluster_waits_for_the_others() -> None:
    async def body(scene: Scene) -> None:
        codes = scene.creation.create_in_background([GROUPS])
        assert codes == {GROUPS: ErrorCode.INVALID_REPLICATION_FACTOR}
        assert await scene.creation.ensure(GROUPS) == ErrorCode.INVALID_REPLICATION_FACTOR

    run(body, live=1, zookeeper_connect="zk:2181")


def test_ensuring_waits_until_there_is_a_leader() -> None:
    async def body(scene: Scene) -> None:
        waiting = spawn(scene.creation.ensure(GROUPS), name="ensure")
        await asyncio.sleep(0.01)
        scene.announce(GROUPS, -1)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        scene.announce(GROUPS, 1)
        assert await waiting == 0
        assert await scene.creation.ensure(GROUPS) == 0
        assert len(scene.created) == 1

    run(body)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_CONTROLLER, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_an_internal_topic_that_cannot_be_created_is_not_waited_for(
    code: int, expected: int
) -> None:
    async def body(scene: Scene) -> None:
        scene.codes = {GROUPS: code}
        async with asyncio.timeout(auto_topic_creation._WAIT_MS / 2000):
            assert await scene.creation.ensure(GROUPS) == expected

    run(body)


@pytest.mark.parametrize(
    "failure",
    [
        KafkaError(ErrorCode.NOT_CONTROLLER),
        ConnectionLost("", "the znode file cannot be written"),
        TimeoutError(),
        ConnectionResetError(),
    ],
)
def test_a_controller_that_fails_is_a_line_in_the_log(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(scene: Scene) -> None:
        scene.failure = failure
        assert await scene.creation.ensure(GROUPS) != 0
        scene.creation.create_in_background([GROUPS])

    run(body)
    assert "Auto topic creation failed for __consumer_offsets" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_the_reason_why_a_topic_cannot_be_created() -> None:
    """Kafka creates it before it responds, and a name that collides is an error for the client."""

    async def body(scene: Scene) -> None:
        scene.codes = {
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "there": ErrorCode.TOPIC_ALREADY_EXISTS,
            "later": ErrorCode.NOT_CONTROLLER,
        }
        codes = await scene.creation.create(["a.b", "a_b", "there", "later"])
        assert codes.pop("a_b") == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert set(codes.values()) == {ErrorCode.LEADER_NOT_AVAILABLE}

    run(body)


def test_a_creation_that_takes_long_holds_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_topic_creation, "_OUTCOME_SECONDS", 0.0)

    async def body(scene: Scene) -> None:
        scene.may_go_on.clear()
        codes = await scene.creation.create(["new"])
        assert codes == {"new": ErrorCode.LEADER_NOT_AVAILABLE}
        codes = await scene.creation.create(["new"])
        assert codes == {"new": ErrorCode.LEADER_NOT_AVAILABLE}
        assert len(scene.created) == 1
        scene.may_go_on.set()
        await asyncio.sleep(0.01)

    run(body)
