"""The log lines and events about failed requests of group members."""

from typing import cast

import pytest

from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.request_error_log import MAX_LINES, REPEAT_INTERVAL_MS, WINDOW_MS
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from tests.doubles.request_context import FakeContext

CONTEXT = cast(RequestContext, FakeContext(12, 4))


class Failures:
    """Failed requests, with a clock of the test's, and a group that has events."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "ottla.groups")
        self._caplog = caplog
        self.now_ms = 1_000_000
        self.events = GroupEvents()
        self.events.add("g", GroupEvent(0, "joined", 1, "m", "c", "/h", ""))
        self._request_errors = GroupRequestErrorLog(self.events, lambda: self.now_ms)

    def fail(self, code: int, group: str = "g", member: str = "m") -> None:
        self._request_errors.log(CONTEXT, "Heartbeat", group, member, 3, code)

    @property
    def lines(self) -> list[str]:
        return self._caplog.messages


def test_a_failure_is_a_line_and_an_event(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(caplog)
    failures.fail(ErrorCode.ILLEGAL_GENERATION)
    assert failures.lines == [
        "Heartbeat request of member 'm' in group 'g' (client 'client' at /127.0.0.1) failed with "
        "ILLEGAL_GENERATION: the generation is not the current one: the group rebalanced without "
        "this member"
    ]
    event = failures.events.of("g")[-1]
    assert (event.kind, event.generation, event.member_id) == ("fenced", 3, "m")
    assert event.reason.startswith("Heartbeat request failed with ILLEGAL_GENERATION: ")


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
def test_expected_errors_are_not_logged(caplog: pytest.LogCaptureFixture, code: ErrorCode) -> None:
    failures = Failures(caplog)
    failures.fail(code)
    assert (failures.lines, len(failures.events.of("g"))) == ([], 1)


def test_the_same_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(caplog)
    for _ in range(5):
        failures.fail(ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(failures.lines) == 1
    failures.fail(ErrorCode.UNKNOWN_MEMBER_ID, member="other")
    assert len(failures.lines) == 2
    failures.now_ms += REPEAT_INTERVAL_MS
    failures.fail(ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(failures.lines) == 3


def test_suppressed_lines_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(caplog)
    for number in range(MAX_LINES + 7):
        failures.fail(ErrorCode.UNKNOWN_MEMBER_ID, f"made-up-{number}", "x" * 30_000)
    assert len(failures.lines) == MAX_LINES
    assert max(map(len, failures.lines)) < 500
    assert failures.events.of("made-up-1") == []
    failures.now_ms += WINDOW_MS
    failures.fail(ErrorCode.UNKNOWN_MEMBER_ID, "another")
    assert failures.lines[-2] == "Suppressed 7 log lines about failed requests"


def test_an_error_without_a_reason_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(caplog)
    failures.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert "UNKNOWN_SERVER_ERROR" in failures.lines[0]
