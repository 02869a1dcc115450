"""Commands that run until Ctrl-C wait for brokers that restart; others report them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.cli import session as session_module
from ottla.cli.session import Session
from ottla.protocol.client.errors import AuthenticationError, BrokerConnectionError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.topics import TopicPartition

AWAY = BrokerConnectionError("broker:9092 refused the connection")
NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader of t-0 is known")
NO_TOPIC = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no leader of t-0 is known")
OTHER_COORDINATOR = HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
RESPONSE = HeartbeatResponse()


class Client:
    """Raises or returns what it was given, one after the other."""

    state = None

    def __init__(self, *results: object) -> None:
        self._results = list(results)

    def _next(self, *_: object, **__: object) -> Any:
        result = self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    call_once = leader = metadata = _next


def heartbeat(session: Session) -> object:
    return session.call(HeartbeatResponse, HeartbeatRequest("g", 1, "m"))


def leader(session: Session) -> object:
    return session.leader(TopicPartition("t", 0))


def metadata(session: Session) -> object:
    return session.metadata(["t"])


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """A session with such a client, whose requests time out at once; pauses take no time."""
    monkeypatch.setattr(session_module.time, "sleep", lambda _seconds: None)

    def connect(*results: object) -> Session:
        session = Session("127.0.0.1:1", "", 0, json=False)
        session.timeout_ms = 0
        monkeypatch.setattr(session, "_client", Client(*results))
        return session

    return connect


@pytest.mark.parametrize(
    ("request_", "results"),
    [
        (heartbeat, (AWAY, AWAY, RESPONSE)),
        (heartbeat, (OTHER_COORDINATOR, AWAY, RESPONSE)),
        (leader, (AWAY, NO_LEADER, RESPONSE)),
        (metadata, (AWAY, RESPONSE)),
    ],
)
def test_it_waits(
    connected: Callable[..., Session],
    capsys: pytest.CaptureFixture[str],
    request_: Callable[[Session], object],
    results: tuple[object, ...],
) -> None:
    session = connected(*results)
    with session.waiting_for_cluster():
        assert request_(session) is RESPONSE
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(",")[0] for line in errors] == [
        "cannot reach the cluster",
        "the cluster responds again",
    ]


@pytest.mark.parametrize("error", [AuthenticationError("SASL failed"), NO_TOPIC])
def test_it_does_not_wait_for_what_stays(
    connected: Callable[..., Session], error: Exception
) -> None:
    session = connected(error, RESPONSE)
    with session.waiting_for_cluster(), pytest.raises(type(error)):
        leader(session)


def test_other_commands_report_it(connected: Callable[..., Session]) -> None:
    session = connected(RESPONSE, AWAY, OTHER_COORDINATOR)
    with session.waiting_for_cluster():
        heartbeat(session)
    with pytest.raises(BrokerConnectionError):
        heartbeat(session)
    assert heartbeat(session) is OTHER_COORDINATOR
