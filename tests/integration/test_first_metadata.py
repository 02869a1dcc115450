"""A client that comes while its broker starts again is not told that the topics are gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.errors import BrokerConnectionError
from tests.doubles.broker_process import START_SECONDS, start_broker
from tests.doubles.command_line import CommandLine


def first_topics(bootstrap: str) -> set[str | None]:
    """All topics, as told to a client that connects as soon as the port is open."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with BlockingClient(bootstrap, client_id="early") as client:
                return {topic.name for topic in client.metadata(None).topics}
        except BrokerConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_client_that_comes_early_sees_the_topics(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker, ThreadPoolExecutor(1) as pool:
        ottla = CommandLine(broker.bootstrap)
        ottla.done("topics", "create", "kept", "-p", "500")
        for end in (broker.kill, broker.stop, broker.kill, broker.stop, broker.kill):
            end()
            asking = pool.submit(first_topics, broker.bootstrap)
            broker.start()
            assert asking.result() == {"kept"}
            assert "kept" in ottla.done("topics", "list").output
