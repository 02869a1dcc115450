"""One queue, one consumer."""

from __future__ import annotations

import asyncio

import pytest

from ottla.controller.events import event_queue
from ottla.controller.events.event_queue import EventQueue
from ottla.controller.events.events import (
    STATES,
    BrokerChange,
    BrokerModification,
    Call,
    ControllerState,
    Event,
    Expire,
    LeaderAndIsrResponseReceived,
    PartitionModification,
    Reelect,
    ShutDown,
    Startup,
    TopicChange,
    TopicDeletion,
    UncleanLeaderElectionEnable,
    state_of,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tests.doubles.controller_cluster import settle
from tests.doubles.controller_runtime import ManualRuntime


class Consumer:
    """Keeps what it was given; each event takes until ``proceed``."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.seen: list[Event] = []
        self.measured: list[tuple[ControllerState, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.queue = EventQueue(
            self.process, self.runtime.now_ms, lambda *each: self.measured.append(each)
        )

    async def process(self, event: Event) -> None:
        self.seen.append(event)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(event, Call):
            event.future.set_result(await event.work())

    def start(self) -> None:
        self.runtime.spawn(self.queue.run(), name="queue")


async def test_events_are_processed_one_after_the_other() -> None:
    consumer = Consumer()
    consumer.gate = asyncio.Event()
    consumer.start()
    consumer.queue.put(BrokerChange())
    consumer.queue.put(TopicChange())
    await settle()
    assert consumer.seen == [BrokerChange()]
    assert consumer.queue.state is ControllerState.BROKER_CHANGE
    consumer.gate.set()
    await settle()
    assert [type(event) for event in consumer.seen] == [BrokerChange, TopicChange]
    assert consumer.queue.state is ControllerState.IDLE
    await consumer.runtime.close()


async def test_equal_signals_wait_only_once_but_different_ones_each() -> None:
    consumer = Consumer()
    for event in (Startup(), Reelect(), Reelect(), BrokerModification(1), BrokerModification(2)):
        consumer.queue.put(event)
    consumer.queue.put(BrokerModification(1))
    assert len(consumer.queue) == 4
    consumer.start()
    await settle()
    assert [type(event) for event in consumer.seen] == [
        Startup,
        Reelect,
        BrokerModification,
        BrokerModification,
    ]
    consumer.queue.put(Reelect())  # it may come again once the first was taken
    await settle()
    assert type(consumer.seen[-1]) is Reelect
    await consumer.runtime.close()


async def test_responses_of_brokers_are_never_left_out() -> None:
    consumer = Consumer()
    for _ in range(2):
        consumer.queue.put(
            LeaderAndIsrResponseReceived(1, 5, LeaderAndIsrResponse(), LeaderAndIsrRequest())
        )
    assert len(consumer.queue) == 2


async def test_calls_return_what_their_work_returns() -> None:
    consumer = Consumer()
    consumer.start()

    async def work() -> str:
        return "done"

    assert await consumer.queue.call("work", ControllerState.IDLE, work) == "done"
    await consumer.runtime.close()


async def test_clearing_refuses_the_calls_that_wait() -> None:
    consumer = Consumer()

    async def work() -> None:
        raise AssertionError("must not run")

    consumer.runtime.spawn(_expect(consumer.queue, work, ErrorCode.NOT_CONTROLLER), name="call")
    await settle()
    consumer.queue.put(BrokerChange())
    consumer.queue.clear_and_put(Expire())
    consumer.start()
    await settle()
    assert [type(event) for event in consumer.seen] == [Expire]
    assert consumer.runtime.failures == []
    await consumer.runtime.close()


async def _expect(queue: EventQueue, work: object, code: int) -> None:
    with pytest.raises(KafkaError) as refused:
        await queue.call("work", ControllerState.IDLE, work)  # type: ignore[arg-type] # any work
    assert refused.value.code == code


async def test_too_many_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "MAX_QUEUED_CALLS", 1)
    consumer = Consumer()

    async def work() -> None:
        return None

    consumer.runtime.spawn(consumer.queue.call("one", ControllerState.IDLE, work), name="one")  # type: ignore[arg-type] # its result is not used
    await settle()
    await _expect(consumer.queue, work, ErrorCode.REQUEST_TIMED_OUT)
    consumer.start()
    await settle()
    await consumer.queue.call("two", ControllerState.IDLE, work)  # there is room again
    await consumer.runtime.close()


async def test_after_the_shut_down_nothing_is_taken() -> None:
    consumer = Consumer()
    consumer.start()
    consumer.queue.put(ShutDown())
    consumer.queue.put(TopicChange())
    await settle()
    assert [type(event) for event in consumer.seen] == [ShutDown]

    async def work() -> None:
        return None

    await _expect(consumer.queue, work, ErrorCode.NOT_CONTROLLER)
    consumer.queue.put(BrokerChange())
    assert len(consumer.queue) == 0


async def test_time_in_the_queue_and_in_the_works_is_measured() -> None:
    consumer = Consumer()
    consumer.gate = asyncio.Event()
    consumer.queue.put(TopicChange())
    consumer.runtime.advance(30)
    consumer.start()
    await settle()
    consumer.runtime.advance(12)
    consumer.gate.set()
    await settle()
    assert consumer.measured == [(ControllerState.TOPIC_CHANGE, 30, 12)]
    await consumer.runtime.close()


def test_every_signal_has_a_state() -> None:
    assert state_of(UncleanLeaderElectionEnable(None)) is (
        ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE
    )
    assert state_of(UncleanLeaderElectionEnable("t")) is (
        ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE
    )
    assert set(STATES.values()) | {
        ControllerState.IDLE,  # calls bring their own
        ControllerState.CONTROLLED_SHUTDOWN,
        ControllerState.LIST_PARTITION_REASSIGNMENT,
        ControllerState.UPDATE_FEATURES,
        ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE,
    } == set(ControllerState)


async def test_changed_brokers_go_first() -> None:
    """Partitions of a failed broker have no leader until it is handled."""
    consumer = Consumer()
    for event in (TopicChange(), BrokerChange(), TopicDeletion(), BrokerChange()):
        consumer.queue.put(event)
    consumer.start()
    await settle()
    assert [type(event) for event in consumer.seen] == [BrokerChange, TopicChange, TopicDeletion]


async def test_signals_of_a_kind_are_taken_together() -> None:
    consumer = Consumer()
    changes = [PartitionModification(topic) for topic in "abc"]
    for event in (changes[0], TopicChange(), *changes[1:]):
        consumer.queue.put(event)
    assert consumer.queue.take(PartitionModification, 2) == changes[:2]
    consumer.queue.put(changes[0])  # it is not in the queue any more
    consumer.start()
    await settle()
    assert consumer.seen == [TopicChange(), changes[2], changes[0]]


async def test_a_controller_whose_session_expired_resigns_before_it_sees_brokers() -> None:
    """It would find its own broker dead."""
    consumer = Consumer()
    consumer.gate = asyncio.Event()
    consumer.start()
    consumer.queue.put(TopicChange())
    await settle()
    consumer.queue.clear_and_put(Expire())
    consumer.queue.put(BrokerChange())
    consumer.gate.set()
    await settle()
    assert consumer.seen == [TopicChange(), Expire(), BrokerChange()]
