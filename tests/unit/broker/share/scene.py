"""Share partitions on a replica manager in memory, with the handlers in front of them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ottla.broker.handlers.share.share_acknowledge import ShareAcknowledgeHandler
from ottla.broker.handlers.share.share_fetch import ShareFetchHandler
from ottla.broker.security.authorization.access_control import MayRead, may_read_all
from ottla.broker.share.group_settings import BrokerShareSettings, ShareGroupSettings
from ottla.broker.share.persister import SharePartitionKey
from ottla.broker.share.sessions import ShareSessions
from ottla.broker.share.share_partitions import SharePartitions
from tests.doubles.replicas import TOPIC_ID, run_now
from tests.unit.broker.handlers.scene import DataPath
from tests.unit.broker.share.helpers import MemoryPersister

KEY = SharePartitionKey("g", TOPIC_ID, 0)


class ShareScene(DataPath):
    """One broker that leads partition 0 of a topic."""

    def __init__(self, *, may_read: MayRead = may_read_all, **configs: str) -> None:
        super().__init__(may_read=may_read)
        self.configs = {"share.auto.offset.reset": "earliest"}
        self.configs |= {name.replace("_", "."): value for name, value in configs.items()}
        self.persister = MemoryPersister()
        self.share_sessions = ShareSessions(10)
        self.shares = SharePartitions(
            self.manager,
            self.persister,
            ShareGroupSettings(BrokerShareSettings(), lambda _: self.configs),
            self.clock,
            self.timer,
            self._run,
        )
        self.share_fetch = ShareFetchHandler(
            *(self.shares, self.share_sessions, self.manager, self.metadata, self.hints),
            *(self.clock, self.timer, 1 << 20, self.quotas.fetch),
            lambda context, group_id: may_read(context, False),
        )
        self.share_acknowledge = ShareAcknowledgeHandler(
            self.shares, self.share_sessions, self.metadata, self.hints, may_read
        )
        self.lead()

    @staticmethod
    def _run(coroutine: Coroutine[Any, Any, None], name: str) -> None:
        run_now(coroutine)
