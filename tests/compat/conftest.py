"""One broker for the whole folder; each test makes topics and groups of its own.

OTTLA_COMPAT_BOOTSTRAP points the suite at another broker (Apache Kafka, say), which is how the
scenarios themselves are checked: what Kafka does is right by definition. OTTLA_COMPAT_WORKERS has
options of `ottla start`, for a machine with several workers.
"""

import gc
import os
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.clients.aiokafka_client import Aiokafka
from tests.compat.clients.kafka_python import KafkaPython
from tests.compat.clients.librdkafka import Librdkafka
from tests.compat.clients.model import Client
from tests.doubles.broker_process import start_broker

# Of `make compat-workers`: --workers=2.
WORKERS = os.environ.get("OTTLA_COMPAT_WORKERS", "").split()
CLIENTS: list[Client] = [Librdkafka(), KafkaPython(), Aiokafka()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A client that loses its broker may drop sockets without closing them: not our defect."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


def collect_what_clients_left() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def clients_leave_nothing_to_later_tests() -> Iterator[None]:
    yield
    collect_what_clients_left()


def pytest_sessionfinish() -> None:
    """pytest itself collects when it ends, and would fail for the sockets of the last tests."""
    collect_what_clients_left()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("OTTLA_COMPAT_BOOTSTRAP")
    if given:
        yield given
        return
    directory: Path = tmp_path_factory.mktemp("broker")
    with start_broker(directory, WORKERS) as broker:
        yield broker.bootstrap


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"
