"""Partitions and a replica manager on logs in memory, for the tests of replication and handlers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.replication.deferred_validation import DeferredValidation
from ottla.broker.replication.fetcher_manager import FetcherManager
from ottla.broker.replication.group_commit import GroupCommit
from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
from ottla.broker.replication.partition import Partition, PartitionContext
from ottla.broker.replication.replica_epochs import ReplicaEpochs
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import FileSystem
from ottla.storage.log.log import Log
from tests.doubles.manual_timer import ManualClock, ManualTimer
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.published_metadata import publish
from tests.doubles.storage_logs import NewRecord, batch_of

BROKER = 1
TOPIC = "t"
TOPIC_ID = b"t" * 16
T = TypeVar("T")


class _NoFetchers:
    """No partition has a leader elsewhere."""

    def add_fetcher_for_partitions(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do."""

    def remove_fetcher_for_partitions(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do."""


def no_fetchers() -> FetcherManager:
    """Return fetchers that fetch nothing."""
    return cast("FetcherManager", _NoFetchers())


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of one that waits for nothing but its next turn."""
    try:
        while True:
            assert coroutine.send(None) is None, "it waits"
    except StopIteration as done:
        result: T = done.value
        return result


class Replicas:
    """One broker with a replica manager; `lead` and `follow` are orders of a controller."""

    def __init__(
        self,
        *,
        broker_id: int = BROKER,
        deferred_validation: DeferredValidation | None = None,
        directories: Iterable[str] = ("/disk",),
        file_system: FileSystem | None = None,
        **settings: object,
    ) -> None:
        """`settings` are those of the logs (`LogConfig`). Files are in memory by default."""
        self.broker_id = broker_id
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.metadata = MetadataCache()
        self.config = LogConfig(**settings)
        self.logs = LogManager(list(directories), self.config, file_system or MemoryFileSystem())
        self.logs.load(self.clock.now_ms())
        self.live = {1, 2, 3}
        self.failed_directories: list[str] = []
        #: Racks by broker, for `publish`.
        self.racks: dict[int, str] = {}
        context = PartitionContext(
            broker_id,
            lag_time_max_ms=10_000,
            is_alive=lambda broker_id: broker_id in self.live,
            now_ms=lambda: int(self.clock.monotonic() * 1000),
        )
        self.manager = ReplicaManager(
            context,
            self.clock,
            self.timer,
            self.metadata,
            isr_manager=None,
            on_directory_failure=self.failed_directories.append,
            on_truncated=lambda log: None,
            deferred_validation=deferred_validation,
        )
        self.group_commit = GroupCommit(self.run, self.clock.now_ms, self.manager)
        self.leader_and_isr = LeaderAndIsrApplier(
            self.manager,
            self.logs,
            lambda _: self.config,
            self.clock.now_ms,
            fetchers=no_fetchers(),
            epochs=ReplicaEpochs(EmbeddedStore(), broker_id, BrokerEpoch()),
            on_leadership=lambda leaders, followers: None,
            before_delete=lambda partition: None,
            on_deleted=lambda partitions: None,
        )

    async def run(self, job: Callable[[], None]) -> None:
        """A worker thread."""
        job()

    def commit_in_groups(self) -> None:
        """Logs that are opened from now on flush in a worker thread."""
        self.logs.flush_later = self.group_commit.request

    def order(
        self,
        leader: int,
        *,
        index: int = 0,
        epoch: int = 0,
        replicas: Iterable[int] = (BROKER,),
        isr: Iterable[int] | None = None,
        partition_epoch: int = 0,
        controller_epoch: int = 1,
        topic: str = TOPIC,
        topic_id: bytes = TOPIC_ID,
        version: int = 7,
        is_new: bool = False,
    ) -> LeaderAndIsrResponse:
        """A LeaderAndIsr request about one partition."""
        members = list(replicas)
        state = LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=controller_epoch,
            leader=leader,
            leader_epoch=epoch,
            isr=members if isr is None else list(isr),
            partition_epoch=partition_epoch,
            replicas=members,
            is_new=is_new,
        )
        request = LeaderAndIsrRequest(
            controller_id=BROKER,
            controller_epoch=controller_epoch,
            topic_states=[LeaderAndIsrTopicState(topic, topic_id, [state])],
        )
        return run_now(self.leader_and_isr.become_leader_or_follower(request, version))

    def lead(self, index: int = 0, **fields: object) -> Partition:
        """This broker leads a partition; other brokers know of it, too."""
        self.publish(index)
        fields.setdefault("replicas", [self.broker_id])
        response = self.order(self.broker_id, index=index, **fields)  # type: ignore[arg-type]  # passed on
        assert codes(response) == [0], response
        return self.partition(index)

    def follow(self, leader: int, index: int = 0, **fields: object) -> Partition:
        """This broker follows `leader`."""
        self.publish(index, leader)
        fields.setdefault("replicas", [self.broker_id, leader])
        response = self.order(leader, index=index, **fields)  # type: ignore[arg-type]  # passed on
        assert codes(response) == [0], response
        return self.partition(index)

    def partition(self, index: int = 0) -> Partition:
        return self.manager.partitions[TopicPartition(TOPIC, index)]

    def log(self, index: int = 0) -> Log:
        log = self.partition(index).log
        assert log is not None
        return log

    def publish(self, index: int = 0, leader: int = BROKER, epoch: int = 0) -> None:
        """The controller sends a partition to all brokers."""
        state = UpdateMetadataPartitionState(
            partition_index=index,
            leader=leader,
            leader_epoch=epoch,
            isr=[leader],
            replicas=[leader],
        )
        publish(
            self.metadata,
            UpdateMetadataRequest(
                controller_id=BROKER,
                controller_epoch=1,
                topic_states=[UpdateMetadataTopicState(TOPIC, TOPIC_ID, [state])],
                live_brokers=[
                    UpdateMetadataBroker(
                        id=broker_id,
                        endpoints=[UpdateMetadataEndpoint(9090 + broker_id, "host", "PLAINTEXT")],
                        rack=self.racks.get(broker_id),
                    )
                    for broker_id in sorted(self.live)
                ],
            ),
        )

    def append(
        self,
        records: list[NewRecord] | int = 1,
        *,
        acks: int = 1,
        index: int = 0,
        timeout_ms: int = 1_000,
        **fields: object,
    ) -> Appended:
        """Appends one batch as a client's request does."""
        return self.append_raw(
            batch_of(records, **fields), acks=acks, index=index, timeout_ms=timeout_ms
        )

    def append_raw(
        self, records: bytearray, *, acks: int = 1, index: int = 0, timeout_ms: int = 1_000
    ) -> Appended:
        appended = Appended(index)
        self.manager.append_records(
            acks, timeout_ms, [(TOPIC, index, records, appended.response)], appended.finish
        )
        return appended


class Appended:
    """The response to one append, and whether it has come."""

    def __init__(self, index: int) -> None:
        self.response = PartitionProduceResponse(index, 0, -1, -1, -1)
        self.calls = 0

    def finish(self) -> None:
        self.calls += 1

    @property
    def is_completed(self) -> bool:
        assert self.calls <= 1, "two responses"
        return self.calls == 1

    @property
    def code(self) -> int:
        assert self.is_completed
        return self.response.error_code

    @property
    def offset(self) -> int:
        assert self.code == 0
        return self.response.base_offset


def codes(response: LeaderAndIsrResponse) -> list[int]:
    """The error codes of the rows."""
    assert response.error_code == 0
    rows = [row for topic in response.topics for row in topic.partition_errors]
    return [row.error_code for row in (*rows, *response.partition_errors)]
