"""Refuses writes with acks=0 and acks=1 after the process was stopped, until leadership is sure.

A process that is stopped (SIGSTOP, a frozen container, `docker pause`) loses its ZooKeeper session
without noticing it, and others lead its partitions. When it continues, requests that wait in its
sockets are read before the end of the session is. Kafka appends and acknowledges them, and the log
is truncated soon after. Here such a request gets NOT_LEADER_OR_FOLLOWER, and the client sends it to
the new leader. Writes with acks=all need no such care: replicas acknowledge them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree import znodes
from ottla.controller.tree.store import SESSION_EXPIRED, StoreError
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask
    from ottla.controller.tree.store import WatchHandle, ZnodeStore

logger = logging.getLogger("ottla.replication")

# A client of ZooKeeper sends a ping after a third of the session timeout. So a session ends during
# a standstill of two thirds of it at the earliest; less than that is looked for.
_LIMIT_SHARE = 2
# How often the time is noted, as a share of the session timeout: small against the limit.
_NOTE_SHARE = 8
# The least of it, for the session timeouts of tests.
_NOTE_MS = 50
_RETRY_SECONDS = 0.1


class _State(Enum):
    SERVING = auto()
    SUSPECTED = auto()  # the session may have ended
    ENDED = auto()  # it has
    REGISTERED = auto()  # again, and the controller has yet to tell what this broker leads


class StandstillGuard:
    """Notices that the process stood still, and asks ZooKeeper whether its session is alive.

    If it is not, writes are refused until the controller has told the broker, which registers
    again, what it leads. Loop only. Without ZooKeeper (a session timeout of 0) it does nothing.
    """

    def __init__(
        self, store: ZnodeStore, broker_id: int, timer: DelayQueue, now_ms: Callable[[], int]
    ) -> None:
        """`now_ms` is of a monotonic clock."""
        self._store = store
        self._path = znodes.broker_path(broker_id)
        self._timer = timer
        self._now_ms = now_ms
        self._noted_ms = 0
        self._limit_ms = 0  # 0: the session cannot end
        self._state = _State.SERVING
        self._standstills = 0
        self._ended_at = 0  # of the standstills, when the session ended
        self._told_epoch = UNKNOWN_BROKER_EPOCH  # of the last request, since the session ended
        self._task: TimerTask | None = None
        self._asking: asyncio.Task[None] | None = None
        self._session: WatchHandle | None = None

    def start(self) -> None:
        """The broker is registered."""
        if self._store.session_timeout_ms > 0 and self._task is None:
            self._noted_ms = self._now_ms()
            self._session = self._store.on_session(self._on_session)
            self._note()

    def stop(self) -> None:
        """Writes are not refused any more."""
        for each in (self._task, self._asking, self._session):
            if each is not None:
                each.cancel()
        self._limit_ms = 0
        self._state = _State.SERVING

    def check(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if other brokers may lead the partitions of this one."""
        if self._limit_ms:
            self._look()
            if self._state is not _SERVING:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "This broker stood still; other brokers may lead its partitions.",
                )

    def registered(self, broker_epoch: int) -> None:
        """The broker has registered again."""
        if self._state is _State.ENDED:
            self._state = _State.REGISTERED
            if self._told_epoch == broker_epoch:
                self.told(broker_epoch)

    def told(self, broker_epoch: int) -> None:
        """A LeaderAndIsr request of the present registration was handled.

        The controller may know of a registration before this broker does, whose connection to
        ZooKeeper was lost before the response. It does not send the request again.
        """
        self._told_epoch = broker_epoch
        if self._state is _State.REGISTERED:
            if self._standstills != self._ended_at:  # the new session may have ended, too
                self._doubt()
                return
            self._state = _State.SERVING
            logger.info("the controller has told what this broker leads: it serves writes again")

    def _look(self) -> None:
        """Look at the time: was it too long ago that this was called last?"""
        now_ms = self._now_ms()
        stood_still_ms = now_ms - self._noted_ms
        self._noted_ms = now_ms
        if stood_still_ms > self._limit_ms > 0:
            self._suspect(stood_still_ms)

    def _note(self) -> None:
        """Look often enough that a long time between two looks is a standstill."""
        self._look()
        timeout_ms = self._store.session_timeout_ms  # the one agreed to may be another one
        self._limit_ms = timeout_ms // _LIMIT_SHARE
        self._task = self._timer.schedule(max(timeout_ms // _NOTE_SHARE, _NOTE_MS), self._note)

    def _suspect(self, stood_still_ms: int) -> None:
        self._standstills += 1
        if self._state is not _State.SERVING:
            return
        logger.warning(
            "this broker stood still for %.1f s, and its ZooKeeper session may have ended: it "
            "refuses writes with acks=0 and acks=1 until ZooKeeper has responded",
            stood_still_ms / 1000,
        )
        self._doubt()

    def _doubt(self) -> None:
        self._state = _State.SUSPECTED
        if self._asking is None:
            self._asking = spawn(self._ask(), name="standstill")

    async def _ask(self) -> None:
        """Until the registration is that of the present session, or the session has ended."""
        try:
            while self._state is _State.SUSPECTED:
                standstills = self._standstills
                if not await self._is_registered():
                    await asyncio.sleep(_RETRY_SECONDS)
                elif standstills == self._standstills and self._state is _State.SUSPECTED:
                    self._state = _State.SERVING
                    logger.info("the ZooKeeper session is alive: this broker serves writes again")
        finally:
            self._asking = None

    async def _is_registered(self) -> bool:
        session_id = self._store.session_id
        try:
            stat = await self._store.exists(self._path)
        except StoreError:
            return False
        owner = 0 if stat is None else stat.ephemeral_owner
        return bool(owner) and owner == session_id == self._store.session_id

    def _on_session(self, event: str) -> None:
        if event == SESSION_EXPIRED:
            self._look()
            if self._state is not _State.SERVING:
                self._state = _State.ENDED
                self._ended_at = self._standstills
                self._told_epoch = UNKNOWN_BROKER_EPOCH


_SERVING = _State.SERVING
