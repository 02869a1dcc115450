from __future__ import annotations

import asyncio
import logging
import sys

import pytest
import uvloop

from ottla.broker.runtime.event_loop import new_event_loop


def test_it_is_one_of_uvloop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla")
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)
    assert not caplog.messages


def test_without_uvloop_it_is_one_of_asyncio_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    caplog.set_level(logging.INFO, "ottla")
    loop = new_event_loop()
    try:
        assert loop.run_until_complete(asyncio.sleep(0, "done")) == "done"
    finally:
        loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    [line] = caplog.messages
    assert line.startswith("uvloop is not available (")
    assert line.endswith("): using the event loop of asyncio, which is slower")
