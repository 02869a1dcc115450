"""The pytest plugin in a run of pytest of its own, as another project has it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.doubles.broker_process import ROOT

SECONDS = 120

EXAMPLE = """
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

seen = []


def write(broker, topic):
    client = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    outcome = []
    client.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    assert client.flush(60) == 0
    return outcome[0]


def test_a_topic_of_its_own(kafka_broker, kafka_topic):
    assert write(kafka_broker, kafka_topic) is None
    assert kafka_broker.end_offset(kafka_topic) == 1
    seen.append((kafka_broker, kafka_topic))


@pytest.mark.kafka_topic(partitions=3, retention_ms=1000)
@pytest.mark.parametrize("what", ["a b/c"])
def test_the_same_broker_another_topic(kafka_broker, kafka_topic, what):
    broker, topic = seen[0]
    assert broker is kafka_broker and topic != kafka_topic
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    assert len(admin.list_topics(kafka_topic, 60).topics[kafka_topic].partitions) == 3
    assert kafka_broker.server.config.num_partitions == 7


def test_leaves_a_fault_behind(kafka_broker, kafka_topic):
    kafka_broker.faults.error("Produce", "INVALID_RECORD")
    assert write(kafka_broker, kafka_topic) is not None


def test_does_not_meet_it(kafka_broker, kafka_topic):
    assert write(kafka_broker, kafka_topic) is None


def test_brokers_of_its_own(kafka_broker, kafka_broker_factory):
    one, other = kafka_broker_factory(num_partitions=2), kafka_broker_factory()
    assert len({kafka_broker.bootstrap, one.bootstrap, other.bootstrap}) == 3
    one.crash()


def test_a_cluster(kafka_cluster):
    kafka_cluster.create_topic("spread", partitions=3)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics("spread", 60).topics["spread"].partitions.values()
    assert {len(each.replicas) for each in partitions} == {3}
"""


def run(
    directory: Path, ini: str = "", example: str = EXAMPLE, *arguments: str
) -> subprocess.CompletedProcess[str]:
    (directory / "test_example.py").write_text(example)
    (directory / "pytest.ini").write_text("[pytest]\n" + ini)
    # Loaded by name, and nothing else: whether the environment is up to date does not matter.
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "ottla.broker.testing.pytest_plugin",
            "test_example.py",
            *arguments,
        ],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_the_fixtures_work_for_others(tmp_path: Path) -> None:
    result = run(tmp_path, "kafka_broker_settings =\n    num.partitions=7\n")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 passed" in result.stdout


MARKS = """
import pytest
from ottla.testing import KafkaError


@pytest.mark.kafka_topic(partitions=2, config={"cleanup.policy": "compact"}, retention_ms=1000)
def test_good(kafka_broker, kafka_topic):
    assert kafka_broker.end_offset(kafka_topic, 1) == 0


@pytest.mark.kafka_topic(topic="orders")
def test_name(kafka_topic): ...


@pytest.mark.kafka_topic(replicas=1)
def test_replicas(kafka_topic): ...


@pytest.mark.kafka_topic(partition=3)
def test_typo(kafka_topic):
    pass


@pytest.mark.kafka_topic(3)
def test_position(kafka_topic):
    pass


@pytest.mark.kafka_topic(retenton_ms=3)
def test_setting(kafka_topic):
    pass
"""


def test_a_wrong_mark_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, example=MARKS)
    assert "1 passed, 5 errors" in result.stdout, result.stdout
    assert "kafka_topic: partition=...: write partitions=3" in result.stdout
    assert "kafka_topic: topic=...: write name='orders'" in result.stdout
    assert "kafka_topic: replicas=...: write replication_factor=3" in result.stdout
    assert "name the argument, such as kafka_topic(partitions=3)" in result.stdout
    assert "Unknown topic config name: retenton.ms (did you mean retention.ms" in result.stdout
    assert "pytest_plugin.py" not in result.stdout, result.stdout


SHARED = """
import pytest
from pathlib import Path
from confluent_kafka import Producer
from ottla.testing import KafkaError


@pytest.mark.parametrize("number", range(8))
def test_writes(kafka_broker, kafka_topic, number):
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(kafka_topic, b"v")
    assert producer.flush(60) == 0
    assert kafka_broker.end_offset(kafka_topic) == 1
    with Path("addresses").open("a") as file:
        file.write(f"{kafka_broker.bootstrap} {kafka_topic}\\n")


def test_faults_name_what_they_hit(kafka_broker, kafka_topic):
    with pytest.raises(ValueError, match="name the topic= or the client_id="):
        kafka_broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER")
    fault = kafka_broker.faults.error(
        "Produce", "NOT_LEADER_OR_FOLLOWER", topic=kafka_topic, times=1
    )
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    producer.produce(kafka_topic, b"v")
    assert producer.flush(60) == 0
    assert fault.wait(1) and fault.hits == 1
    assert "Faults of this worker [<Fault error" in repr(kafka_broker.faults)
    assert "left=0" in repr(fault) and kafka_topic in repr(kafka_broker)
    with pytest.raises(TypeError, match=r"write fault\\.remove"):
        kafka_broker.faults.remove("Produce")
    kafka_broker.faults.remove(fault)
    assert "removed" in repr(fault)


@pytest.mark.parametrize("kafka_topic", ["named"], indirect=True)
def test_a_topic_with_a_name(kafka_broker, kafka_topic):
    assert kafka_topic == "named" and kafka_broker.end_offset("named") == 0


def test_it_has_settings_for_clients(kafka_broker):
    settings = kafka_broker.client_config("aiokafka")
    assert settings["bootstrap_servers"] == kafka_broker.bootstrap


def test_the_broker_is_not_stopped(kafka_broker):
    with pytest.raises(RuntimeError, match="kafka_broker_factory"):
        kafka_broker.restart()
    with pytest.raises(KafkaError, match="did you mean retention.ms"):
        kafka_broker.create_topic("t", config={"retenton.ms": 5})
"""


def test_workers_share_a_broker(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    ini = "kafka_broker_shared = true\n"
    result = run(tmp_path, ini, SHARED, "-p", "xdist", "-n", "3")
    assert "12 passed" in result.stdout, result.stdout + result.stderr
    assert result.stderr == ""
    lines = [line.split() for line in (tmp_path / "addresses").read_text().splitlines()]
    assert len({address for address, _ in lines}) == 1
    assert len({topic for _, topic in lines}) == 8


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]])
def test_a_shared_broker_is_one_of_the_session(tmp_path: Path, workers: list[str]) -> None:
    if workers:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    ini = "kafka_broker_shared = true\nkafka_broker_scope = module\n"
    result = run(tmp_path, ini, SHARED, *workers)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.strip() == (
        "ERROR: kafka_broker_shared needs kafka_broker_scope = session"
    )


def test_an_unknown_scope_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "kafka_broker_scope = weekly\n")
    assert result.returncode != 0
    assert "kafka_broker_scope = weekly: use one of function, class" in result.stdout + (
        result.stderr
    )


def test_an_installation_has_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ottla": "ottla.broker.testing.pytest_plugin"}


def test_it_imports_no_broker_before_it_is_asked() -> None:
    code = (
        "import sys, ottla.broker.testing.pytest_plugin; "
        "sys.exit('ottla.broker.server.broker_server' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


REWRITTEN = """
import sys


def is_rewritten(module):
    return "assertion.rewrite" in type(module.__spec__.loader).__module__


def test_a_broker(kafka_broker):
    assert is_rewritten(sys.modules[__name__])
    ours = {name for name in sys.modules if name.startswith("ottla.")}
    assert "ottla.broker.server.broker_server" in ours and len(ours) > 300
    plugin = {"ottla.broker", "ottla.broker.testing", "ottla.broker.testing.pytest_plugin"}
    assert not {name for name in ours - plugin if is_rewritten(sys.modules[name])}


def test_an_assertion_of_the_project_says_what_it_compared():
    one = 1
    assert one == 2
"""


def test_assertions_of_the_broker_are_not_rewritten(tmp_path: Path) -> None:
    # As pytest does for an installed distribution with a plugin; one that is not rewritten yet.
    (tmp_path / "conftest.py").write_text("import pytest; pytest.register_assert_rewrite('ottla')")
    result = run(tmp_path, "filterwarnings = ignore\n", REWRITTEN)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "assert 1 == 2" in result.stdout


STOPPED = """
import pytest


def test_stops_it(kafka_broker, kafka_topic):
    kafka_broker.stop()
    with pytest.raises(RuntimeError, match="not running, a test has stopped it: it serves all"):
        kafka_broker.faults
    with pytest.raises(RuntimeError, match="kafka_broker_factory"):
        kafka_broker.create_topic("t")


def test_comes_later(kafka_broker, kafka_topic):
    assert kafka_broker.end_offset(kafka_topic) == 0
    kafka_broker.create_topic("kept")


def test_crashes_it(kafka_broker):
    kafka_broker.crash()


def test_comes_after_the_crash(kafka_broker):
    assert kafka_broker.end_offset("kept") == 0


def test_stops_a_cluster(kafka_cluster):
    kafka_cluster.stop()


@pytest.mark.kafka_topic(replication_factor=3)
def test_comes_after_it(kafka_topic, kafka_cluster):
    assert kafka_cluster.end_offset(kafka_topic) == 0


def test_the_factory_starts_its_brokers(kafka_broker_factory):
    with pytest.raises(RuntimeError, match="the end of the test stops it"):
        with kafka_broker_factory():
            pass
"""


def test_a_broker_that_a_test_stopped_is_started_after_it(tmp_path: Path) -> None:
    """And who starts and stops it is named."""
    result = run(tmp_path, example=STOPPED)
    assert "7 passed" in result.stdout, result.stdout


FAILS = """
import pytest


def test_running(kafka_broker):
    with pytest.raises(RuntimeError, match="the broker is running: it serves all tests of the"):
        kafka_broker.start()


def test_fails(kafka_broker):
    kafka_broker.end_offset("nowhere")


def test_of_a_cluster(kafka_cluster):
    kafka_cluster.create_topic("orders", partitions=0)


def test_of_a_hint(kafka_broker):
    kafka_broker.create_topic("orders", num_partitions=3)
"""


def test_a_failure_shows_the_test_and_not_the_broker(tmp_path: Path) -> None:
    result = run(tmp_path, example=FAILS)
    assert "3 failed, 1 passed" in result.stdout, result.stdout
    assert ">       kafka_broker.end_offset" in result.stdout
    for inner in ("embedded.py", "cluster.py", "hints.py", "concurrent/futures"):
        assert inner not in result.stdout, result.stdout


PARAMETERS = """
import pytest
from confluent_kafka.admin import AdminClient


def partitions(broker):
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


@pytest.mark.parametrize("kafka_topic", ["orders", "payments"], indirect=True)
@pytest.mark.parametrize("again", [0, 1])
def test_a_name(kafka_broker, kafka_topic, again):
    assert kafka_topic in ("orders", "payments")
    assert partitions(kafka_broker) == {kafka_topic: 1}  # that of the last test is deleted
    if again:
        kafka_broker.delete_topic(kafka_topic)


@pytest.mark.kafka_topic(partitions=2, retention_ms=1000)
@pytest.mark.parametrize(
    "kafka_topic", [{"partitions": 3, "cleanup.policy": "compact"}, {"name": "a"}], indirect=True
)
def test_settings(kafka_broker, kafka_topic):
    assert partitions(kafka_broker)[kafka_topic] == (2 if kafka_topic == "a" else 3)
    log = kafka_broker.server.parts.replica_manager.partitions[kafka_topic, 1].log
    assert log.config.retention_ms == 1000


@pytest.mark.kafka_topic(name="fixed")
def test_a_name_of_a_mark(kafka_topic):
    assert kafka_topic == "fixed"


@pytest.mark.parametrize("kafka_topic", [3, None, {"num_partitions": 3}], indirect=True)
def test_wrong(kafka_topic): ...
"""


def test_topics_are_parametrised(tmp_path: Path) -> None:
    result = run(tmp_path, example=PARAMETERS)
    assert "7 passed, 3 errors" in result.stdout, result.stdout
    assert "the parameter 3 is neither a name nor a dictionary, such as" in result.stdout
    assert "the parameter None is neither" in result.stdout
    assert "kafka_topic: num_partitions=...: write partitions=3" in result.stdout


NESTED_MARKS = """
import pytest

pytestmark = pytest.mark.kafka_topic(partitions=2, config={"cleanup.policy": "compact"})


def settings(kafka_broker, topic, partition):
    return kafka_broker.server.parts.replica_manager.partitions[topic, partition].log.config


@pytest.mark.kafka_topic(retention_ms=1000, config={"segment.ms": 7000})
class TestNested:
    @pytest.mark.kafka_topic(retention_ms=3000)
    def test_the_nearest_mark(self, kafka_broker, kafka_topic):
        found = settings(kafka_broker, kafka_topic, 1)
        assert (found.retention_ms, found.segment_ms, found.compact) == (3000, 7000, True)

    @pytest.mark.parametrize("kafka_topic", [{"retention.ms": 4000}], indirect=True)
    @pytest.mark.kafka_topic(partitions=3, config={"retention.ms": 3000})
    def test_a_parameter(self, kafka_broker, kafka_topic):
        found = settings(kafka_broker, kafka_topic, 2)
        assert (found.retention_ms, found.segment_ms, found.compact) == (4000, 7000, True)
"""


def test_marks_and_parameters_are_merged_by_argument(tmp_path: Path) -> None:
    result = run(tmp_path, example=NESTED_MARKS)
    assert "2 passed" in result.stdout, result.stdout


REPLACED = """
import pytest
from ottla.testing import Broker


@pytest.fixture(scope="SCOPE")
def kafka_broker():
    with Broker(tls=True, users={"alice": "secret"}, num_partitions=4) as broker:
        yield broker
"""

USES_REPLACED = """
import pytest
from confluent_kafka import Producer

pytestmark = pytest.mark.kafka_topic(partitions=2)


@pytest.fixture
def producer(kafka_broker):
    return Producer({**kafka_broker.client_config(user="alice"), "log_level": 0})


def deliver(producer, topic):
    outcome = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(60) == 0
    return outcome[0]


def test_leaves_a_fault(kafka_topic, producer, request):
    kafka_broker = request.getfixturevalue("kafka_broker")
    assert kafka_broker.server.config.num_partitions == 4
    assert kafka_broker.end_offset(kafka_topic, 1) == 0
    kafka_broker.faults.error("Produce", "INVALID_RECORD")
    assert deliver(producer, kafka_topic) is not None


def test_does_not_meet_it(kafka_topic, producer):
    assert deliver(producer, kafka_topic) is None
"""


@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_a_broker_of_the_project_is_used_by_all_fixtures(tmp_path: Path, scope: str) -> None:
    (tmp_path / "conftest.py").write_text(REPLACED.replace("SCOPE", scope))
    result = run(tmp_path, example=USES_REPLACED)
    assert "2 passed" in result.stdout, result.stdout


WHERE_TOPICS_ARE = """
import pytest
from ottla.testing import KafkaError


@pytest.fixture
def address(kafka_cluster):
    return kafka_cluster.bootstrap


def test_on_the_cluster(kafka_topic, kafka_cluster):
    assert kafka_cluster.end_offset(kafka_topic) == 0


def test_by_a_fixture(kafka_topic, address, request):
    assert request.getfixturevalue("kafka_cluster").end_offset(kafka_topic) == 0


def test_on_the_broker(kafka_topic, kafka_cluster, kafka_broker):
    assert kafka_broker.end_offset(kafka_topic) == 0


def test_of_the_factory(kafka_topic, kafka_broker_factory): ...


class TestOther:
    @pytest.fixture
    def kafka_broker(self):
        return "localhost:9092"

    def test_is_no_broker(self, kafka_topic): ...


def test_leaves_a_broker_down(kafka_cluster):
    kafka_cluster[1].crash()
    kafka_cluster[2].pause()
    kafka_cluster[3].faults.error("Produce", "INVALID_RECORD")


@pytest.mark.kafka_topic(replication_factor=3)
def test_finds_all_brokers(kafka_topic, kafka_cluster):
    assert all(broker.is_running for broker in kafka_cluster)
    assert "[]" in repr(kafka_cluster[3].faults)
"""


WITHOUT_A_TOPIC = """
import pytest


@pytest.mark.{mark}
class TestTopics:
    def test_it(self, kafka_broker{argument}): ...

    {own}
    def test_other(self, kafka_broker{argument}): ...
"""


@pytest.mark.parametrize(
    ("mark", "argument", "own", "words"),
    [
        ("parametrize('kafka_topic', ['orders'])", ", kafka_topic", "", "indirect=True creates no"),
        (
            "parametrize('a,kafka_topic', [(1, 'b')])",
            ", a, kafka_topic",
            "",
            "[...], indirect=True",
        ),
        ("kafka_topic(partitions=3)", "", "", "2 passed"),
        ("x", "", "@pytest.mark.kafka_topic(name='a')", "write def test_other(kafka_topic)"),
        ("usefixtures('kafka_topic')", "", "@pytest.mark.kafka_topic(name='a')", "2 passed"),
    ],
)
def test_a_topic_that_would_not_be_created_is_refused(
    tmp_path: Path, mark: str, argument: str, own: str, words: str
) -> None:
    result = run(tmp_path, example=WITHOUT_A_TOPIC.format(mark=mark, argument=argument, own=own))
    assert words in result.stdout, result.stdout
    assert ("2 passed" in words) == (result.returncode == 0)


def test_whether_a_broker_is_shared_is_true_or_false(tmp_path: Path) -> None:
    result = run(tmp_path, "kafka_broker_shared = maybe\n")
    assert "kafka_broker_shared: invalid truth value 'maybe': use true or false" in result.stderr


def test_a_topic_is_where_the_test_works(tmp_path: Path) -> None:
    result = run(tmp_path, example=WHERE_TOPICS_ARE)
    assert "5 passed, 2 errors" in result.stdout, result.stdout
    assert "kafka_topic is a topic of kafka_broker, and this test uses kafka_broker_factory" in (
        result.stdout
    )
    assert "kafka_broker, which is 'localhost:9092' here: return a Broker" in result.stdout


HINTS = """
import pytest


def test_settings_as_a_dictionary(kafka_broker_factory, tmp_path):
    with pytest.raises(TypeError, match="settings are named arguments"):
        kafka_broker_factory({"num.partitions": 3})
    with pytest.raises(TypeError, match="Cluster"):
        kafka_broker_factory(brokers=3)
    with pytest.raises(AttributeError, match=r"write broker = kafka_broker_factory"):
        kafka_broker_factory.bootstrap
    assert kafka_broker_factory(tmp_path).directory == tmp_path
"""


def test_the_factory_has_the_hints_of_a_broker(tmp_path: Path) -> None:
    result = run(tmp_path, example=HINTS)
    assert "1 passed" in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tls=no", "tls=no: use true or false"),
        ("tls=True", "tls=True: use true or false"),
        ("tls=true, num.partitions=3", "num.partitions=3': write one name=value a line"),
        ("num.partitions=3 tls=true", "write one name=value a line"),
        ("users=alice:secret", "write the fixture kafka_broker in conftest.py, with Broker(users="),
        ("port=9092", "with Broker(port=...)"),
        ("brokers=3", "the fixture kafka_cluster has three brokers; for another number write it"),
    ],
)
def test_a_wrong_value_in_the_settings_is_named(tmp_path: Path, given: str, words: str) -> None:
    result = run(tmp_path, f"kafka_broker_settings = {given}\n")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_setting_that_the_broker_refuses_is_one_line(tmp_path: Path) -> None:
    example = """
def test_of_the_broker(kafka_broker): ...


def test_of_the_cluster(kafka_cluster): ...


def test_of_the_factory(kafka_broker_factory):
    kafka_broker_factory()
"""
    result = run(tmp_path, "kafka_broker_settings = num.partitons=3\n", example)
    assert "1 failed, 2 errors" in result.stdout, result.stdout
    assert ">       kafka_broker_factory()" in result.stdout
    place = f"kafka_broker_settings in {tmp_path / 'pytest.ini'}: "
    for name in ("kafka_broker: ", "kafka_cluster: ", "ConfigError: "):
        assert f"{name}{place}" in result.stdout, result.stdout
    for inner in (".py:", "Traceback", "def "):
        texts = result.stdout.split("= FAILURES =")[0]
        assert inner not in texts.partition("= ERRORS =")[2], texts


def test_tls_may_be_off_in_the_settings(tmp_path: Path) -> None:
    example = """
def test_plain(kafka_broker):
    assert "ssl.ca.location" not in kafka_broker.client_config()
"""
    result = run(tmp_path, "kafka_broker_settings = tls=false\n", example)
    assert "1 passed" in result.stdout, result.stdout
