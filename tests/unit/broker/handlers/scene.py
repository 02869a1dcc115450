"""The data-path handlers of a broker on logs in memory."""

from __future__ import annotations

from ottla.broker.cluster.endpoints import Endpoints, LeaderHints
from ottla.broker.handlers.common.down_conversion import DownConversion
from ottla.broker.handlers.common.transactional_produce import TransactionalProduce
from ottla.broker.handlers.records.fetch import FetchHandler
from ottla.broker.handlers.records.list_offsets import ListOffsetsHandler
from ottla.broker.handlers.records.produce import ProduceHandler
from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.broker.replication.fetch_sessions import FetchSessions
from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.security.authorization.access_control import MayRead, may_read_all
from ottla.broker.transactions.state import Producer
from ottla.broker.transactions.verification import OnVerified
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import BROKER, Replicas


class Verifier:
    """Verifies every transaction, except partitions in `errors`."""

    def __init__(self) -> None:
        self.errors: dict[TopicPartition, int] = {}
        self.asked: list[frozenset[TopicPartition]] = []
        self.adds = False

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        on_verified: OnVerified,
        *,
        knows_abortable: bool,
        adds: bool,
    ) -> None:
        self.adds = adds
        self.asked.append(partitions)
        on_verified(self.errors)


class DataPath(Replicas):
    """Replicas with the handlers in front of them."""

    def __init__(self, *, may_read: MayRead = may_read_all, **settings: object) -> None:
        super().__init__(**settings)
        self.endpoints = Endpoints(BROKER, self.metadata, frozenset())
        self.hints = LeaderHints(self.metadata, self.endpoints)
        self.verifier = Verifier()
        self.transaction_version = 2
        self.quotas = ClientQuotas()
        self.workers = WorkerPool()
        self.produce = ProduceHandler(
            self.manager,
            self.hints,
            TransactionalProduce(
                self.manager,
                self.verifier,  # type: ignore[arg-type]  # a double
                self.timer,
                self.clock.now_ms,
                lambda: self.transaction_version,
            ),
            self.quotas.produce,
        )
        self.sessions = FetchSessions(10, self.clock.now_ms)
        self.fetch = FetchHandler(
            self.manager,
            self.metadata,
            self.sessions,
            self.hints,
            DownConversion(
                self.workers,
                lambda _: self.config,
                lambda topic, partition: self.logs.get(topic, partition) is not None,
                self.manager.context.topics,
                MemoryBudget().records,
            ),
            1 << 20,
            self.quotas,
            may_read,
        )
        self.list_offsets = ListOffsetsHandler(self.manager, self.workers, self.clock.now_ms)
