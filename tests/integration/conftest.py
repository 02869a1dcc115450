"""One broker for all tests of the command line; each test uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that no test may stop."""
    with start_broker(tmp_path_factory.mktemp("command-line"), broker_id=7) as broker:
        yield broker


@pytest.fixture
def ottla(shared_broker: BrokerProcess) -> CommandLine:
    """The command, pointed at the shared broker."""
    return CommandLine(shared_broker.bootstrap)
