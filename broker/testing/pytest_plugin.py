"""Pytest fixtures for tests against a broker; pytest loads them once Ottla is installed.

`kafka_broker` is one embedded broker for the whole run (the ini option `kafka_broker_scope` changes
that), `kafka_topic` the name of a new topic for each test. docs/testing.md has examples.

The broker is imported when the first test uses a fixture, not when pytest starts.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.broker.testing.cluster import Cluster
    from ottla.broker.testing.embedded import Broker
    from ottla.broker.testing.shared import SharedBrokerServer

SCOPES = ("function", "class", "module", "package", "session")

# A topic name has at most 249 characters in Kafka; the rest is for the number.
_NAME_MAX = 200

_numbers = count(1)

# The fixtures whose brokers serve several tests, and their values that are in use.
_SERVING = ("kafka_broker", "kafka_cluster")
_LIVE: pytest.StashKey[dict[Any, Any]] = pytest.StashKey()

# Arguments of `Broker` that a line of the ini file cannot have.
_IN_CONFTEST = ("users", "acls", "port", "directory")

# Where the controlling process of pytest-xdist tells its workers the address of the shared broker.
_WORKER_INPUT = "ottla_shared_broker"
_SHARED: pytest.StashKey[SharedBrokerServer] = pytest.StashKey()


class _NotRewritten:
    """Finds the modules of Ottla before pytest's import hook does.

    pytest rewrites the assertions of all modules of a distribution that has a plugin, which for a
    broker of 500 modules takes seconds. They have no assertions of tests."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("ottla."):
            return PathFinder.find_spec(name, path, target)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    if _NotRewritten not in sys.meta_path:
        sys.meta_path.insert(0, _NotRewritten)
    parser.addini(
        "kafka_broker_scope",
        f"scope of the fixture kafka_broker: {', '.join(SCOPES)}",
        default="session",
    )
    parser.addini(
        "kafka_broker_settings",
        "broker settings of the fixture kafka_broker, one name=value a line",
        type="linelist",
        default=[],
    )

    parser.addini(
        "kafka_broker_shared",
        "whether the workers of pytest-xdist share the broker of the fixture kafka_broker",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka_topic(partitions=1, replication_factor=-1, name=None, config={}, **config): the "
        "topic that the fixture kafka_topic creates; topic settings with _ for .",
    )
    # A wrong value is an error of the run: one line, and exit code 4.
    scope = _scope("kafka_broker", config)
    if _is_shared(config) and scope != "session":
        raise pytest.UsageError("kafka_broker_shared needs kafka_broker_scope = session")
    _settings(config)


def _is_shared(config: pytest.Config) -> bool:
    try:
        return bool(config.getini("kafka_broker_shared"))
    except (ValueError, pytest.UsageError) as error:  # it has the value
        raise pytest.UsageError(f"kafka_broker_shared: {error}: use true or false") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse a parameter or a mark that would not reach the fixture kafka_topic."""
    name = metafunc.function.__name__
    for mark in metafunc.definition.iter_markers("parametrize"):
        if _hides_the_topic(*mark.args, **mark.kwargs):
            pytest.fail(
                f"{name}: parametrize('kafka_topic', ...) without indirect=True creates no topic: "
                "write parametrize('kafka_topic', [...], indirect=True), or name the parameter "
                "otherwise",
                pytrace=False,
            )
    # The mark of a class or module is for those of its tests that use the fixture.
    marked = any(mark.name == "kafka_topic" for mark in metafunc.definition.own_markers)
    asks_itself = "request" in inspect.signature(metafunc.function).parameters
    if marked and not asks_itself and "kafka_topic" not in metafunc.fixturenames:
        pytest.fail(
            f"{name}: the mark kafka_topic creates no topic, since the test does not use the "
            f"fixture: write def {name}(kafka_topic)",
            pytrace=False,
        )


def _hides_the_topic(
    argnames: Any, argvalues: Any = (), indirect: Any = False, *_: Any, **__: Any
) -> bool:
    """Whether these arguments of parametrize replace the fixture."""
    names = argnames.split(",") if isinstance(argnames, str) else argnames
    if "kafka_topic" not in [str(each).strip() for each in names]:
        return False
    return indirect is not True and "kafka_topic" not in (indirect or ())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist starts a worker: tell it where the shared broker is."""
    config = node.config
    if not _is_shared(config):
        return
    server = config.stash.get(_SHARED, None)
    if server is None:
        from ottla.broker.testing.shared import SharedBrokerServer

        server = config.stash[_SHARED] = SharedBrokerServer(_settings(config))
    node.workerinput[_WORKER_INPUT] = (server.address, server.key)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared broker, after the workers."""
    server = config.stash.get(_SHARED, None)
    if server is not None:
        server.stop()


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    scope = config.getini("kafka_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"kafka_broker_scope = {scope}: use one of {', '.join(SCOPES)}")
    return scope


def _settings(config: pytest.Config) -> dict[str, Any]:
    """By Kafka's names, as in the ini file."""
    found: dict[str, Any] = {}
    for line in config.getini("kafka_broker_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_broker_settings: {line!r} is not name=value")
        if name.strip() == "brokers":
            raise pytest.UsageError(
                f"kafka_broker_settings: {line!r}: the fixture kafka_cluster has three brokers; "
                "for another number write it in conftest.py, with Cluster(brokers=...)"
            )
        if name.strip() in _IN_CONFTEST:
            raise pytest.UsageError(
                f"kafka_broker_settings: {line!r} is an argument of Broker: write the fixture "
                f"kafka_broker in conftest.py, with Broker({name.strip()}=...)"
            )
        _check_alone(line, value)
        found[name.strip()] = value.strip()
    tls = found.get("tls")
    if tls is not None:
        if tls not in ("true", "false"):
            raise pytest.UsageError(f"kafka_broker_settings: tls={tls}: use true or false")
        found["tls"] = tls == "true"
    return found


def _check_alone(line: str, value: str) -> None:
    """Refuse a second setting in the value of the first."""
    if "=" not in value:
        return
    from ottla.broker.config.definitions import broker_settings
    from ottla.broker.testing.embedded import setting_name

    known = {*broker_settings(), "tls"}
    for name in re.findall(r"[,;\s]\s*([\w.]+)\s*=", value):
        if setting_name(name) in known:
            raise pytest.UsageError(f"kafka_broker_settings: {line!r}: write one name=value a line")


def _failure(text: str) -> BaseException:
    """Of a fixture: pytest shows the text, and no frames of this module."""
    return pytest.fail.Exception(text, pytrace=False)


@contextmanager
def _failing(where: str) -> Iterator[None]:
    """Errors of wrong settings and arguments say what to write; the frames of a broker do not."""
    from ottla.broker.config.errors import ConfigError
    from ottla.protocol.errors import KafkaError

    try:
        yield
    except (ConfigError, KafkaError, TypeError, ValueError) as error:
        raise _failure(f"{where}: {error}") from None


def _place(config: pytest.Config) -> str:
    """Where the settings of the fixtures are."""
    return f"kafka_broker_settings{f' in {config.inipath}' if config.inipath else ''}"


@pytest.fixture(scope=_scope)
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A running broker (`ottla.testing.Broker`); its address is `kafka_broker.bootstrap`."""
    shared = getattr(pytestconfig, "workerinput", {}).get(_WORKER_INPUT)
    if shared is not None:
        from ottla.broker.testing.shared import SharedBroker

        with _failing(f"kafka_broker: {_place(pytestconfig)}"):
            broker: Any = SharedBroker(*shared)
        yield broker
        return
    from ottla.broker.testing.embedded import Broker

    with _failing(f"kafka_broker: {_place(pytestconfig)}"):
        broker = Broker(**_settings(pytestconfig)).start()
    broker.owner = (
        "it serves all tests of the fixture kafka_broker, and a test that starts or stops a broker "
        "uses kafka_broker_factory"
    )
    yield broker
    broker.stop()


@pytest.fixture(scope=_scope)
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three running brokers (`ottla.testing.Cluster`) on a ZooKeeper of their own."""
    from ottla.broker.testing.cluster import Cluster

    with _failing(f"kafka_cluster: {_place(pytestconfig)}"):
        cluster = Cluster(**_settings(pytestconfig)).start()
    yield cluster
    cluster.stop()


class _Factory:
    """Starts brokers for one test."""

    def __init__(self, common: Mapping[str, Any], place: str) -> None:
        self._common = common  # those of the ini file
        self._place = place
        self._started: list[Broker] = []

    def __call__(self, *directory: Any, **settings: object) -> Broker:
        __tracebackhide__ = True
        from ottla.broker.config.errors import ConfigError, names_in
        from ottla.broker.testing.embedded import Broker, setting_name

        names = {setting_name(name) for name in settings}
        given = {k: v for k, v in self._common.items() if setting_name(k) not in names}
        arguments: dict[str, Any] = {**given, **settings}
        try:
            broker = Broker(*directory, **arguments).start()
        except ConfigError as error:
            if {setting_name(name) for name in given}.isdisjoint(names_in(error)):
                raise
            raise ConfigError(f"{self._place}: {error}") from None
        broker.owner = "kafka_broker_factory starts the broker, and the end of the test stops it"
        self._started.append(broker)
        return broker

    if not TYPE_CHECKING:  # a type checker is to find them

        def __getattr__(self, name: str) -> Any:
            from ottla.broker.testing.embedded import Broker
            from ottla.broker.testing.hints import missing

            ours = f"it starts a broker: write broker = kafka_broker_factory(), then broker.{name}"
            raise missing(self, name, {name: ours} if hasattr(Broker, name) else {})

    def stop_all(self) -> None:
        for broker in self._started:
            broker.stop()


@pytest.fixture
def kafka_broker_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Broker]]:
    """Start brokers for one test, with settings as arguments; each is its own cluster."""
    factory = _Factory(_settings(pytestconfig), _place(pytestconfig))
    yield factory
    factory.stop_all()


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic; `@pytest.mark.kafka_topic(partitions=3)` configures it, and so does
    `@pytest.mark.parametrize("kafka_topic", [...], indirect=True)`, with a name or a dictionary.

    A topic whose name is given is deleted after the test."""
    broker: Any = _broker_of_topic(kafka_broker, request)
    wanted: dict[str, Any] = {}
    with _failing("kafka_topic"):
        for farther in (_parameter(request), *_marked(request)):
            wanted = _over(wanted, farther)
        wanted.setdefault("partitions", 1)  # end_offset(kafka_topic) is that of the whole topic
        name = wanted.get("name")
        wanted["name"] = _new_name(request) if name is None else name
        broker.create_topic(**wanted)
    yield wanted["name"]
    if name is not None and broker.is_running:
        _delete(broker, name)


def _broker_of_topic(kafka_broker: Any, request: pytest.FixtureRequest) -> Any:
    """The broker or cluster that the test uses, directly or by its other fixtures."""
    used = _used_beside("kafka_topic", request.node)
    found = kafka_broker
    if "kafka_broker" not in used:
        if "kafka_cluster" in used:
            found = request.getfixturevalue("kafka_cluster")
        elif "kafka_broker_factory" in used:
            raise _failure(
                "kafka_topic is a topic of kafka_broker, and this test uses kafka_broker_factory: "
                "call create_topic of that broker, or name the fixture that starts it kafka_broker"
            )
    if not hasattr(found, "create_topic"):
        raise _failure(
            f"kafka_topic creates topics on kafka_broker, which is {found!r} here: return a Broker "
            "or a Cluster of ottla.testing from that fixture"
        )
    return found


def _used_beside(name: str, item: Any) -> set[str]:
    """The fixtures of a test but those that only the fixture `name` uses."""
    info = getattr(item, "_fixtureinfo", None)  # not of every kind of test
    found: set[str] = {name}
    waiting = list(info.initialnames) if info is not None else ["kafka_broker"]
    while waiting:  # bounded: each fixture of the test once
        each = waiting.pop()
        if each not in found:
            found.add(each)
            definitions = info.name2fixturedefs.get(each, ()) if info is not None else ()
            waiting += [argument for each in definitions for argument in each.argnames]
    return found


def _marked(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The arguments of the marks, the nearest first."""
    marks = list(request.node.iter_markers("kafka_topic"))
    for mark in marks:
        if mark.args:
            raise _failure(
                f"kafka_topic{mark.args}: name the argument, such as kafka_topic(partitions=3)"
            )
    return [dict(mark.kwargs) for mark in marks]


def _over(nearer: dict[str, Any], farther: dict[str, Any]) -> dict[str, Any]:
    """Both, and `nearer` alone where it has the same argument or setting, also if that is written
    in another way: retention_ms=..., "retention.ms" or in config={...}."""
    from ottla.broker.testing.embedded import setting_name

    configs = [each.get("config") or {} for each in (nearer, farther)]
    if not all(isinstance(each, Mapping) for each in configs):
        return {**farther, **nearer}  # create_topic refuses it
    own = {setting_name(name) for name in nearer} | configs[0].keys()
    kept = {name: value for name, value in farther.items() if setting_name(name) not in own}
    config = {name: value for name, value in configs[1].items() if name not in own} | configs[0]
    found = {**kept, **nearer}
    found.pop("config", None)
    return {**found, "config": config} if config else found


def _parameter(request: pytest.FixtureRequest) -> dict[str, Any]:
    if not hasattr(request, "param"):
        return {}
    if isinstance(request.param, str):
        return {"name": request.param}
    if isinstance(request.param, Mapping):
        return dict(request.param)
    raise _failure(
        f"kafka_topic: the parameter {request.param!r} is neither a name nor a dictionary, such as "
        "{'partitions': 3, 'retention.ms': 1000}"
    )


def _new_name(request: pytest.FixtureRequest) -> str:
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_NAME_MAX].strip(".-")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return "-".join(part for part in (plain, worker, str(next(_numbers))) if part)


def _delete(broker: Any, name: str) -> None:
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        broker.delete_topic(name)
    except KafkaError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # the test has deleted it
            raise


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Remember the brokers of the fixtures, also of those that a conftest.py replaces."""
    outcome: Any = yield
    if fixturedef.argname in _SERVING and outcome.excinfo is None:
        request.config.stash.setdefault(_LIVE, {})[fixturedef] = outcome.get_result()


def pytest_fixture_post_finalizer(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    request.config.stash.get(_LIVE, {}).pop(fixturedef, None)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Remove the faults that the test left, and start the brokers that it stopped."""
    for definition, found in item.config.stash.get(_LIVE, {}).items():
        # One of this test only ends now.
        if definition.scope != "function" and hasattr(found, "start_stopped"):
            found.start_stopped()
        for broker in getattr(found, "brokers", [found]):
            if getattr(broker, "is_running", False):
                broker.faults.clear()
