"""What is said, and how often, when a group's request is refused."""

from typing import cast

import pytest

from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.handlers.groups.refusals import GroupRefusals
from ottla.broker.handlers.refusal_log import MAX_LINES, SAME_AGAIN_MS, SPAN_MS
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from tests.doubles.request_context import FakeContext

CONTEXT = cast(RequestContext, FakeContext(12, 4))


class Told:
    """Refusals with a clock of the test's, and a group that is known."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "ottla.groups")
        self._caplog = caplog
        self.now_ms = 1_000_000
        self.events = GroupEvents()
        self.events.add("g", GroupEvent(0, "joined", 1, "m", "c", "/h", ""))
        self._refusals = GroupRefusals(self.events, lambda: self.now_ms)

    def refuse(self, code: int, group: str = "g", member: str = "m") -> None:
        self._refusals.tell(CONTEXT, "Heartbeat", group, member, 3, code)

    @property
    def lines(self) -> list[str]:
        return self._caplog.messages


def test_a_line_and_an_event_in_words(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    told.refuse(ErrorCode.ILLEGAL_GENERATION)
    assert told.lines == [
        "group 'g': Heartbeat of member 'm' (client 'client' at /127.0.0.1) refused with "
        "ILLEGAL_GENERATION: its generation is over: the group went on without it"
    ]
    event = told.events.of("g")[-1]
    assert (event.kind, event.generation, event.member_id) == ("fenced", 3, "m")
    assert event.reason.startswith("Heartbeat refused with ILLEGAL_GENERATION: ")


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
def test_what_is_part_of_the_protocol_is_not_told(
    caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    told = Told(caplog)
    told.refuse(code)
    assert (told.lines, len(told.events.of("g"))) == ([], 1)


def test_the_same_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    for _ in range(5):
        told.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(told.lines) == 1
    told.refuse(ErrorCode.UNKNOWN_MEMBER_ID, member="other")
    assert len(told.lines) == 2
    told.now_ms += SAME_AGAIN_MS
    told.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(told.lines) == 3


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    for number in range(MAX_LINES + 7):
        told.refuse(ErrorCode.UNKNOWN_MEMBER_ID, f"made-up-{number}", "x" * 30_000)
    assert len(told.lines) == MAX_LINES
    assert max(map(len, told.lines)) < 500
    assert told.events.of("made-up-1") == []
    told.now_ms += SPAN_MS
    told.refuse(ErrorCode.UNKNOWN_MEMBER_ID, "another")
    assert told.lines[-2] == "7 refusals of requests were not logged"


def test_a_code_without_words_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    told.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert "UNKNOWN_SERVER_ERROR" in told.lines[0]
