"""Batches the control requests of a state change into few requests for each broker.

Mirrors Kafka's `ControllerBrokerRequestBatch`. A state machine adds partitions and sends the
batch at the end: to each broker first LeaderAndIsr, then UpdateMetadata, then StopReplica. A broker
gets its requests in the order they were sent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ottla.controller.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    LeaderAndIsr,
    ReplicaAssignment,
)
from ottla.controller.runtime import Runtime
from ottla.controller.settings import ControllerSettings, control_versions
from ottla.controller.state.context import ControllerContext
from ottla.protocol.steps import Steps, Turn, TurnQueue
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.controller.requests.broker_channels import BrokerChannels
    from ottla.protocol.message import Message
    from ottla.protocol.messages.leader_and_isr import (
        LeaderAndIsrPartitionError,
        LeaderAndIsrPartitionState,
        LeaderAndIsrRequest,
        LeaderAndIsrResponse,
    )
    from ottla.protocol.messages.stop_replica import StopReplicaResponse
    from ottla.protocol.messages.update_metadata import (
        UpdateMetadataBroker,
        UpdateMetadataPartitionState,
        UpdateMetadataResponse,
    )
logger = logging.getLogger("ottla.controller")

SECURITY_PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class ResponseCallbacks:
    """Called with broker id, broker epoch of the request (to ignore responses of a broker before
    its restart), and response (that of LeaderAndIsr with its request); on the loop, at most once
    for each request."""

    def __init__(
        self,
        leader_and_isr: "Callable[[int, int, LeaderAndIsrResponse, LeaderAndIsrRequest], None]",
        update_metadata: Callable[[int, int], None],
        replica_deletion: Callable[[int, int, dict[TopicPartition, int]], None],
    ) -> None:
        self.leader_and_isr = leader_and_isr
        self.update_metadata = update_metadata
        self.replica_deletion = replica_deletion


class RequestBatch:
    def __init__(
        self,
        controller_id: int,
        context: ControllerContext,
        channels: "BrokerChannels",
        settings: ControllerSettings,
        responses: ResponseCallbacks,
    ) -> None:
        self.controller_id = controller_id
        self.context = context
        self.channels = channels
        self.responses = responses
        self.listener_name = settings.inter_broker_listener_name
        self.versions = control_versions(settings.inter_broker_protocol_version)
        self.metadata_deliveries: dict[int, Delivery] = {}
        """The last UpdateMetadata to each broker; it is done after all requests before it."""
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, tuple[int, bool]]] = {}
        self._metadata_brokers: dict[int, None] = {}
        self._metadata_to_all = False
        self._metadata_partitions: dict[TopicPartition, UpdateMetadataPartitionState] = {}
        self._freeing = TurnQueue(_in_next_iteration)
        # By broker id and epoch; no more than the replicas that a broker ever had.
        self._dropped_deletions: dict[tuple[int, int], dict[TopicPartition, None]] = {}

    def clear(self) -> None:
        """Drop what was added, after a failed state change."""
        self._leader_and_isr.clear()
        self._stop_replica.clear()
        self._metadata_brokers.clear()
        self._metadata_to_all = False
        self._metadata_partitions.clear()

    # Adding

    def add_leader_and_isr(
        self,
        broker_ids: Iterable[int],
        partition: TopicPartition,
        state: LeaderAndIsr,
        assignment: ReplicaAssignment,
        *,
        is_new: bool,
    ) -> None:
        """Add the state for the given brokers, and an UpdateMetadata for all brokers."""
        from ottla.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState

        row: LeaderAndIsrPartitionState | None = None
        for broker_id in broker_ids:
            if broker_id < 0:
                continue
            of_broker = self._leader_and_isr.setdefault(broker_id, {})
            before = of_broker.get(partition)
            is_new_there = is_new or (before is not None and before.is_new)
            if row is None or row.is_new is not is_new_there:  # the requests share it
                row = LeaderAndIsrPartitionState(
                    topic_name=partition[0],
                    partition_index=partition[1],
                    controller_epoch=state.controller_epoch,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    isr=list(state.isr),
                    partition_epoch=state.partition_epoch,
                    replicas=list(assignment.replicas),
                    adding_replicas=list(assignment.adding),
                    removing_replicas=list(assignment.removing),
                    is_new=is_new_there,
                    leader_recovery_state=(
                        state.recovery_state if self.versions.leader_recovery else 0
                    ),
                )
            of_broker[partition] = row
        self.add_update_metadata_to_all((partition,))

    def add_stop_replica(
        self, broker_ids: Iterable[int], partition: TopicPartition, *, delete: bool
    ) -> None:
        epoch = self.context.stop_replica_epoch(partition)
        for broker_id in broker_ids:
            if broker_id >= 0:
                of_broker = self._stop_replica.setdefault(broker_id, {})
                already = partition in of_broker and of_broker[partition][1]
                of_broker[partition] = (epoch, delete or already)

    def add_update_metadata_to_all(self, partitions: Iterable[TopicPartition]) -> None:
        """`add_update_metadata` for all live brokers."""
        # Once for all partitions: with a hundred brokers this would be most of the work.
        brokers = () if self._metadata_to_all else self.context.brokers
        self._metadata_to_all = True
        self.add_update_metadata(brokers, partitions)

    def add_update_metadata(
        self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition]
    ) -> None:
        """Partitions without a leader and ISR are left out: clients do not need them."""
        from ottla.protocol.messages.update_metadata import UpdateMetadataPartitionState

        context = self.context
        self._metadata_brokers.update(dict.fromkeys(broker_ids))
        for partition in partitions:
            state = context.leadership.get(partition)
            if state is None:
                continue
            leader, leader_epoch = state.leader, state.leader_epoch
            if partition[0] in context.topics_to_delete:
                leader, leader_epoch = LEADER_DURING_DELETE, EPOCH_DURING_DELETE
            replicas = context.assignment(partition).replicas
            self._metadata_partitions[partition] = UpdateMetadataPartitionState(
                topic_name=partition[0],
                partition_index=partition[1],
                controller_epoch=state.controller_epoch,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=list(state.isr),
                zk_version=state.partition_epoch,
                replicas=list(replicas),
                offline_replicas=[r for r in replicas if not context.is_online(r, partition)],
            )

    def add_dropped_deletions(self, broker_id: int) -> None:
        """StopReplica again for replicas of a broker, whose request the overflowed queue dropped.

        Those of reassignments: a replica that is assigned again is left out. A broker that has
        registered again has looked for logs that are not assigned to it.
        """
        broker = self.context.brokers.get(broker_id)
        epoch = -1 if broker is None else broker.epoch
        for partition in self._dropped_deletions.pop((broker_id, epoch), {}):
            if broker_id not in self.context.assignment(partition).replicas:
                self.add_stop_replica((broker_id,), partition, delete=True)

    def forget_dropped_deletions(self, broker_id: int) -> None:
        """The broker registered again, or is gone."""
        for key in [each for each in self._dropped_deletions if each[0] == broker_id]:
            del self._dropped_deletions[key]

    # Sending

    async def send(self, epoch: int) -> None:
        """Send and clear the batch, with the given controller epoch."""
        turn = Turn()  # of all requests: those to one broker may be short, and many brokers get one
        leader_and_isr, self._leader_and_isr = self._leader_and_isr, {}
        for broker_id in list(leader_and_isr):
            # Freed one by one: all of them together would hold the loop.
            states = leader_and_isr.pop(broker_id)
            if broker_id in self.context.brokers:
                await self._send_leader_and_isr(broker_id, states, epoch, turn)
        brokers, self._metadata_brokers = self._metadata_brokers, {}
        self._metadata_to_all = False
        partitions, self._metadata_partitions = self._metadata_partitions, {}
        if brokers:
            await self._send_update_metadata(brokers, partitions, epoch, turn)
        stop_replica, self._stop_replica = self._stop_replica, {}
        for broker_id, stops in stop_replica.items():
            if broker_id in self.context.brokers:
                await self._send_stop_replica(broker_id, stops, epoch, turn)

    def _topic_id(self, topic: str) -> bytes:
        return self.context.topic_ids.get(topic, ZERO_UUID)

    async def _send_leader_and_isr(
        self,
        broker_id: int,
        states: "dict[TopicPartition, LeaderAndIsrPartitionState]",
        epoch: int,
        turn: Turn,
    ) -> None:
        from ottla.protocol.messages.leader_and_isr import (
            LeaderAndIsrLiveLeader,
            LeaderAndIsrRequest,
            LeaderAndIsrTopicState,
        )

        version = self.versions.leader_and_isr
        leaders = dict.fromkeys(state.leader for state in states.values())
        live_leaders = []
        for leader in leaders:
            broker = self.context.brokers.get(leader)
            endpoint = None if broker is None else broker.endpoint(self.listener_name)
            if endpoint is not None:
                live_leaders.append(
                    LeaderAndIsrLiveLeader(
                        broker_id=leader, host_name=endpoint.host, port=endpoint.port
                    )
                )
        request = LeaderAndIsrRequest(
            controller_id=self.controller_id,
            controller_epoch=epoch,
            broker_epoch=self.context.brokers[broker_id].epoch,
            live_leaders=live_leaders,
        )
        topics: dict[str, LeaderAndIsrTopicState] = {}
        if version >= 2:
            for (topic, _), state in states.items():
                if topic not in topics:
                    topics[topic] = LeaderAndIsrTopicState(
                        topic_name=topic, topic_id=self._topic_id(topic), partition_states=[]
                    )
                topics[topic].partition_states.append(state)
                await turn.share()
            request.topic_states = list(topics.values())
        else:
            request.ungrouped_partition_states = list(states.values())

        def responded(response: "Message | None") -> None:
            self._free_later(topics, states)
            if response is not None:
                self.responses.leader_and_isr(
                    broker_id,
                    request.broker_epoch,
                    cast("LeaderAndIsrResponse", response),
                    request,
                )

        self.channels.send(broker_id, request, version, responded)

    def _live_brokers(self) -> "list[UpdateMetadataBroker]":
        from ottla.protocol.messages.update_metadata import (
            UpdateMetadataBroker,
            UpdateMetadataEndpoint,
        )

        version = self.versions.update_metadata
        brokers = []
        for broker in self.context.brokers.values():
            endpoints = broker.endpoints
            if version == 0:  # has one PLAINTEXT address for each broker
                endpoints = tuple(e for e in endpoints if e.security_protocol == "PLAINTEXT")[:1]
            brokers.append(
                UpdateMetadataBroker(
                    id=broker.broker_id,
                    v0_host=endpoints[0].host if version == 0 and endpoints else "",
                    v0_port=endpoints[0].port if version == 0 and endpoints else 0,
                    endpoints=[
                        UpdateMetadataEndpoint(
                            host=endpoint.host,
                            port=endpoint.port,
                            listener=endpoint.listener_name,
                            security_protocol=SECURITY_PROTOCOL_IDS[endpoint.security_protocol],
                        )
                        for endpoint in endpoints
                    ],
                    rack=broker.rack,
                )
            )
        return brokers

    async def _send_update_metadata(
        self,
        broker_ids: dict[int, None],
        partitions: "dict[TopicPartition, UpdateMetadataPartitionState]",
        epoch: int,
        turn: Turn,
    ) -> None:
        from ottla.controller.requests import shared_metadata
        from ottla.protocol.messages.update_metadata import (
            UpdateMetadataRequest,
            UpdateMetadataTopicState,
        )

        version = self.versions.update_metadata
        live_brokers = self._live_brokers()
        topics: dict[str, UpdateMetadataTopicState] = {}
        if version >= 5:
            for (topic, _), state in partitions.items():
                if topic not in topics:
                    topics[topic] = UpdateMetadataTopicState(
                        topic_name=topic, topic_id=self._topic_id(topic), partition_states=[]
                    )
                topics[topic].partition_states.append(state)
                await turn.share()
        topic_states = list(topics.values())
        shared: shared_metadata.SharedMetadata | None = None
        live = [each for each in broker_ids if each in self.context.brokers]
        waiting = set(live)

        def received(broker_id: int) -> None:
            waiting.discard(broker_id)
            if not waiting:
                self._free_later(topics, partitions)

        for broker_id in live:
            broker = self.context.brokers[broker_id]
            request = UpdateMetadataRequest(
                controller_id=self.controller_id,
                controller_epoch=epoch,
                broker_epoch=broker.epoch,
                live_brokers=live_brokers,
            )
            responded = self._metadata_received(broker_id, received)
            if version < shared_metadata.MIN_VERSION:
                request.ungrouped_partition_states = list(partitions.values())
                self.channels.send(broker_id, request, version, responded)
                continue
            request.topic_states = topic_states
            shared = shared or shared_metadata.SharedMetadata(request, version)
            encoded = partial(shared.request_for, broker.epoch)
            self.channels.send(broker_id, request, version, responded, encoded)

    def _metadata_received(
        self, broker_id: int, received: Callable[[int], None]
    ) -> "Callable[[Message | None], None]":
        delivery = self.metadata_deliveries[broker_id] = Delivery()

        def responded(response: "Message | None") -> None:
            delivery.finish()
            received(broker_id)
            if response is not None:
                self.responses.update_metadata(
                    broker_id, cast("UpdateMetadataResponse", response).error_code
                )

        return responded

    def _free_later(self, topics: dict[str, Any], states: dict[TopicPartition, Any]) -> None:
        """Free the states of a request that was responded to, once its sender has let it go.

        In turns: the metadata of 100,000 partitions at once would hold the loop for 40 ms.
        """
        _in_next_iteration(partial(self._freeing.start, _emptied(topics, states)))

    async def _send_stop_replica(
        self,
        broker_id: int,
        stops: dict[TopicPartition, tuple[int, bool]],
        epoch: int,
        turn: Turn,
    ) -> None:
        version = self.versions.stop_replica
        broker_epoch = self.context.brokers[broker_id].epoch
        if version >= 3:
            await self._stop(broker_id, stops, epoch, broker_epoch, turn)
            return
        for delete in (True, False):  # older versions have one flag for the whole request
            part = {partition: stop for partition, stop in stops.items() if stop[1] is delete}
            if part:
                await self._stop(broker_id, part, epoch, broker_epoch, turn)

    async def _stop(
        self,
        broker_id: int,
        stops: dict[TopicPartition, tuple[int, bool]],
        epoch: int,
        broker_epoch: int,
        turn: Turn,
    ) -> None:
        from ottla.protocol.messages.stop_replica import (
            StopReplicaPartitionState,
            StopReplicaPartitionV0,
            StopReplicaRequest,
            StopReplicaTopicState,
            StopReplicaTopicV1,
        )

        version = self.versions.stop_replica
        request = StopReplicaRequest(
            controller_id=self.controller_id,
            controller_epoch=epoch,
            broker_epoch=broker_epoch,
            delete_partitions=version < 3 and next(iter(stops.values()))[1],
        )
        by_topic: dict[str, list[int]] = {}
        states: dict[str, StopReplicaTopicState] = {}
        for (topic, index), (leader_epoch, delete) in stops.items():
            await turn.share()
            if version < 3:
                by_topic.setdefault(topic, []).append(index)
                continue
            if topic not in states:
                states[topic] = StopReplicaTopicState(topic_name=topic, partition_states=[])
            states[topic].partition_states.append(
                StopReplicaPartitionState(
                    partition_index=index, leader_epoch=leader_epoch, delete_partition=delete
                )
            )
        if version >= 3:
            request.topic_states = list(states.values())
        elif version >= 1:
            request.topics = [
                StopReplicaTopicV1(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic.items()
            ]
        else:
            request.ungrouped_partitions = [
                StopReplicaPartitionV0(topic_name=topic, partition_index=index)
                for topic, index in stops
            ]
        deleted = {partition for partition, (_, delete) in stops.items() if delete}

        def responded(response: "Message | None") -> None:
            if response is None:
                self._dropped_deletions.setdefault((broker_id, broker_epoch), {}).update(
                    dict.fromkeys(deleted)
                )
            elif deleted:
                outcome = self._deletion_outcome(deleted, cast("StopReplicaResponse", response))
                if outcome:
                    self.responses.replica_deletion(broker_id, broker_epoch, outcome)

        self.channels.send(broker_id, request, version, responded)

    def _deletion_outcome(
        self, deleted: set[TopicPartition], response: "StopReplicaResponse"
    ) -> dict[TopicPartition, int]:
        """The error codes of the replicas whose topic is being deleted.

        A response with a top-level error may have no rows: the error is that of all replicas.
        """
        codes = {
            TopicPartition(row.topic_name, row.partition_index): row.error_code
            for row in response.partition_errors
        }
        if response.error_code:
            codes = dict.fromkeys(deleted, response.error_code)
        return {
            partition: code
            for partition, code in codes.items()
            if partition in deleted and partition[0] in self.context.topics_with_deletion_started
        }


Rows = tuple[str, bytes, "Sequence[LeaderAndIsrPartitionError]"]


def rows_by_topic(
    request: "LeaderAndIsrRequest",
    response: "LeaderAndIsrResponse",
    names: Mapping[bytes, str],
) -> list[Rows]:
    """(topic, topic id in the response, rows) of a response of version 5 or higher.

    The response has ids alone. A topic that was sent without one is known by its place: brokers of
    Ottla respond in the order of the request. `names` has the topics by id. A part that cannot be
    related to a topic is left out.
    """
    found: list[Rows] = []
    sent = request.topic_states
    has_same_topics = len(sent) == len(response.topics) and all(
        each.topic_id in (ZERO_UUID, answered.topic_id)
        and len(each.partition_states) == len(answered.partition_errors)
        for each, answered in zip(sent, response.topics, strict=True)
    )
    for place, topic in enumerate(response.topics):
        name = sent[place].topic_name if has_same_topics else names.get(topic.topic_id)
        if name is not None:
            found.append((name, topic.topic_id, topic.partition_errors))
    return found


def _in_next_iteration(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _emptied(*containers: dict[Any, Any]) -> Steps[None]:
    for container in containers:
        while container:
            container.popitem()
            yield


class Delivery:
    """A request in flight; call `finish` when it has a response or is dropped."""

    __slots__ = ("_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._waiters: list[asyncio.Future[None]] = []

    def finish(self) -> None:
        self.done = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def add_waiter(self, waiter: "asyncio.Future[None]") -> None:
        self._waiters.append(waiter)


async def wait_for(deliveries: Iterable[Delivery], timeout_ms: int, runtime: Runtime) -> bool:
    """Return whether all were finished within `timeout_ms`."""
    waiting = [each for each in deliveries if not each.done]
    if not waiting or timeout_ms <= 0:
        return not waiting
    expired = False
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expire() -> None:
        nonlocal expired
        expired = True
        if not waiter.done():
            waiter.set_result(None)

    timer = runtime.call_later(timeout_ms, expire)
    try:
        for delivery in waiting:
            while not delivery.done and not expired:
                if waiter.done():
                    waiter = asyncio.get_running_loop().create_future()
                delivery.add_waiter(waiter)
                await waiter
    finally:
        timer.cancel()
    return all(each.done for each in waiting)
