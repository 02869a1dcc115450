import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from ottla.broker.net.connection import Connection


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test runs on both loops: uvloop serves, asyncio's is what people debug with."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_callback_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An exception in a callback of the loop is only logged; here it fails the test."""
    yield
    logged = caplog.get_records("call")
    messages = [record.getMessage() for record in logged if record.name == "asyncio"]
    # Debug mode also says how long a callback took, on a busy machine.
    assert not [each for each in messages if not each.startswith("Executing ")]


@pytest.fixture
def _nobody_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large requests wait behind slow ones, whatever has come of them."""
    monkeypatch.setattr(Connection, "arrives_fast", lambda self, size: False)
