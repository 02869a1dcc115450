"""What access control adds to a request: the bytecodes that the broker executes for it, with 5,000
ACLs and without an authorizer. They do not depend on the machine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, cast

import pytest

from ottla.broker.requests import request_channel
from ottla.broker.testing.embedded import Broker
from ottla.controller.tree.znodes_security import PREFIXED, Acl, AclResource
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.operations import Versions
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch

ACLS = 5000
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
TOPIC = "team7-orders"
# Later versions have ids of topics.
BY_NAME = Versions(0, 12)
REQUESTS = 40
MOST_TIMES_MORE = 1.05


def produce(records: int) -> ProduceRequest:
    batch = build_batch((1_700_000_000_000, None, b"v" * 100, []) for _ in range(records))
    topic = TopicProduceData(TOPIC, [PartitionProduceData(0, batch)])
    return ProduceRequest(None, 1, 30_000, [topic])


KINDS: dict[str, Message] = {
    "produce 1 record": produce(1),
    "produce 100 records": produce(100),
    "fetch": FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic=TOPIC,
                partitions=[
                    FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=16_384)
                ],
            )
        ],
    ),
}


def send(client: BlockingClient, request: Message) -> None:
    for _ in range(REQUESTS):
        response = client.send(None, request, versions=BY_NAME)
        if isinstance(response, ProduceResponse):
            assert not response.responses[0].partition_responses[0].error_code
        else:
            row = cast("FetchResponse", response).responses[0].partitions[0]
            assert not row.error_code
            assert row.records


class Bytecodes:
    """Counts those of the threads that are started meanwhile."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()
        self._calls: Counter[CodeType] = Counter()
        self._is_counting = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._counts.clear()
        self._calls.clear()
        self._is_counting = True
        yield
        self._is_counting = False

    def of_request(self) -> float:
        """Of all functions that each request calls: jobs at intervals do not count."""
        found = sum(
            count for code, count in self._counts.items() if self._calls[code] >= REQUESTS * 0.9
        )
        return found / REQUESTS

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_counting:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._calls[frame.f_code] += 1
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self._counts[frame.f_code] += 1
        return self._count


def measured(**settings: str) -> dict[str, float]:
    """Bytecodes by kind of request."""
    bytecodes = Bytecodes()
    threading.settrace(bytecodes.trace)
    broker = Broker(**settings)
    try:
        broker.start()
    finally:
        threading.settrace(None)
    found: dict[str, float] = {}
    try:
        rules = broker.server.parts.access_control.rules
        for number in range(ACLS // 2 if settings else 0):
            user = "ANONYMOUS" if number == 7 else f"u{number}"
            acls = [Acl(f"User:{user}", "Allow", each, "*") for each in ("Read", "Write")]
            rules.replace(AclResource(PREFIXED, "Topic", f"team{number}-"), acls)
        broker.create_topic(TOPIC)
        with BlockingClient(broker.bootstrap) as client:
            for name, request in KINDS.items():
                send(client, request)
                with bytecodes.counting():
                    send(client, request)
                found[name] = bytecodes.of_request()
    finally:
        broker.stop()
    return found


def test_five_thousand_acls_cost_less_than_a_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced requests take long, which is no property of theirs.
    monkeypatch.setattr(request_channel, "EXPENSIVE_SECONDS", 1e9)
    without = measured()
    with_acls = measured(authorizer_class_name=AUTHORIZER, super_users="User:admin")
    for name, bytecodes in without.items():
        assert bytecodes > 1000, "the requests are not counted"
        times = with_acls[name] / bytecodes
        assert 1.0 < times < MOST_TIMES_MORE, f"{name}: {bytecodes} and {with_acls[name]}"
