from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.groups.cluster_support import CONSUMER, SHARE, ClusterSupport, protocols_of
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.eventually import eventually_async

WITH, WITHOUT = {84: (0, 0)}, {1: (0, 16)}


class Cluster:
    """This broker is 1; `versions` has what the others offer, None for one that is not reached."""

    def __init__(self, **versions: Mapping[int, tuple[int, int]] | None) -> None:
        self.versions = {int(name[1:]): each for name, each in versions.items()}
        self.asked: list[int] = []
        self.hold: asyncio.Future[None] | None = None
        self.now_s = 0.0
        self.support = ClusterSupport(1, cast(Any, self), self.versions_of, lambda: self.now_s)

    @property
    def snapshot(self) -> Any:
        return SimpleNamespace(brokers={each: f"broker {each}" for each in (1, *self.versions)})

    async def versions_of(self, broker_id: int) -> Mapping[int, tuple[int, int]]:
        self.asked.append(broker_id)
        if self.hold is not None:
            await self.hold
        found = self.versions[broker_id]
        if found is None:
            raise ConnectionError("down")
        return found

    async def code(self) -> int:
        try:
            await self.support.check(SHARE)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


async def test_a_broker_alone_sends_no_request() -> None:
    cluster = Cluster()
    assert (await cluster.code(), cluster.asked) == (ErrorCode.NONE, [])


async def test_all_brokers_have_share_groups() -> None:
    cluster = Cluster(b2=WITH, b3=WITH)
    for _ in range(2):
        assert await cluster.code() == ErrorCode.NONE
    assert cluster.asked == [2, 3]


async def test_one_broker_without(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(b2=WITH, b3=WITHOUT)
    for _ in range(3):
        assert await cluster.code() == ErrorCode.UNSUPPORTED_VERSION
    (line,) = caplog.messages
    assert "broker 3 does not serve them" in line
    del cluster.versions[3]
    cluster.support.metadata_changed()
    cluster.versions[3] = WITH  # it comes back with share groups, and nobody asked meanwhile
    assert await cluster.code() == ErrorCode.NONE
    assert caplog.messages[1:] == ["Every broker serves groups of the share protocol now"]


async def test_a_broker_that_cannot_be_reached() -> None:
    cluster = Cluster(b2=None)
    assert await cluster.code() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.versions[2] = WITH
    assert await cluster.code() == ErrorCode.NONE
    cluster.versions[2] = None
    cluster.now_s = 1000.0
    assert await cluster.code() == ErrorCode.NONE  # what is known holds until it is unregistered
    cluster.versions[2] = WITHOUT
    assert await cluster.code() == ErrorCode.NONE  # nobody waits for the answer
    await eventually_async(lambda: 76 in cluster.support.not_offered())
    assert await cluster.code() == ErrorCode.UNSUPPORTED_VERSION


async def test_a_request_waits_for_no_broker_that_has_answered_before() -> None:
    """One whose connections get lost would hold each heartbeat for as long as a request may take,
    until the members of all groups here are expired."""
    cluster = Cluster(b2=WITH, b3=WITH)
    assert await cluster.code() == ErrorCode.NONE
    cluster.now_s = 1000.0
    answer = cluster.hold = asyncio.get_running_loop().create_future()
    for _ in range(3):
        async with asyncio.timeout(1):
            assert await cluster.code() == ErrorCode.NONE
    await eventually_async(lambda: cluster.asked == [2, 3, 2, 3])  # once, by nobody that waits
    answer.set_result(None)
    await eventually_async(lambda: cluster.support.serves(SHARE))


KAFKA_39 = {68: (0, 0), 69: (0, 0)}
OTTLA = {68: (0, 0), 69: (0, 1), 84: (0, 0)}  # as it answers in a cluster that offers less


def test_the_protocols_of_a_broker_do_not_depend_on_what_its_cluster_offers() -> None:
    assert protocols_of(KAFKA_39) == frozenset()
    assert protocols_of(OTTLA) == {CONSUMER, SHARE}
    assert protocols_of({69: (0, 1)}) == {CONSUMER}


async def test_a_broker_that_is_new_is_asked_and_offers_what_it_has() -> None:
    cluster = Cluster(b2=OTTLA, b3=OTTLA)
    assert not cluster.support.serves(CONSUMER)  # a heartbeat waits for the answer
    assert cluster.support.not_offered() == {}  # a client that connects does not give up
    await eventually_async(lambda: cluster.support.serves(CONSUMER))
    assert cluster.support.serves(SHARE)
    assert cluster.asked == [2, 3]
    cluster.versions[4] = KAFKA_39
    assert cluster.support.not_offered() == {}
    await eventually_async(lambda: bool(cluster.support.not_offered()))
    assert cluster.support.not_offered() == {68: 0, 76: None, 78: None, 79: None}
    assert not cluster.support.serves(CONSUMER)
    cluster.now_s = 1_000.0
    assert 76 in cluster.support.not_offered()  # until it answers otherwise
    del cluster.versions[4]
    assert cluster.support.not_offered() == {}


async def test_each_protocol_is_checked_for_itself() -> None:
    cluster = Cluster(b2={69: (0, 1)})
    await cluster.support.check(CONSUMER)
    with pytest.raises(KafkaError, match="Broker 2 of the cluster does not serve share groups"):
        await cluster.support.check(SHARE)
    assert cluster.support.not_offered() == {76: None, 78: None, 79: None}


async def test_a_broker_that_is_not_reached_hides_no_other() -> None:
    """The answer is that of the broker which is known to lack the protocol, and all are asked."""
    cluster = Cluster(b2=None, b3=WITH, b4=WITHOUT)
    assert await cluster.code() == ErrorCode.UNSUPPORTED_VERSION
    assert cluster.asked == [2, 3, 4]
    cluster.versions[4] = WITH
    cluster.now_s += 100
    assert await cluster.code() == ErrorCode.COORDINATOR_NOT_AVAILABLE
